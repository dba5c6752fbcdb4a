"""Large sweeps: what a machine costs that bounds rule out, and a run of a million machines with its resume
and its fronts.

    python -m bench.sweep [--machines 100000] [--solved 120] [--million 1000000] [--drawn 1000000] [--shared
        65536]
        [--whole 1000000] [--workers 2] [--structural 4096] [--alone 24] [--structures 60] [--varied 1]

Ruled out: ResNet-50 and SqueezeNet on random machines of a space of 1e11 edge arrays, against the front of a
short run; CPU seconds per machine of each step from its number to a committed part, beside the same machines
one by one. A million: a matrix product, so that few searches stand beside them; wall time, memory of all
processes (proportional shares), disk, resume. Drawn: as many machines of ResNet-50 with choices of solved
ones; disk, fronts, and what views compute. Shared: so many random machines of one array, ResNet-50 and
SqueezeNet, which share mappings; CPU seconds of the table, and of each step from number to committed part,
beside machines solved exactly (together, since they differ in prices and rates alone). Whole: a run of so
many, from an empty cache and with tables kept. Structural: batches of random lattices (16 array shapes, 25
pairs of capacities, 12 prices), SqueezeNet and ResNet-50, at a gap of 5 %, and a quarter of them at 1 %;
beside some of them alone. Structures: one batch of so many random machines of any size, beside some alone.
Varied: a run of 984,064 machines, each of a structure of its own, from an empty cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from analysis import db
from cluster import batch_eval, driver, pruning
from cluster import store as stores
from cluster.run_state import RunState
from cluster.worker import Ask, Job, Lease, job_of, solve_lease, solve_machine
from dse.frontend import runs
from dse.run import folder as folders
from dse.run.record import MODEL_VERSION, SOLVER_VERSION
from dse.solve.sharing.shared_mappings import Table
from dse.solve.solve import load_kernels
from dse.study import prune
from dse.study import study as studies
from dse.study.pareto import Trial
from dse.study.sampler import generation_machines, permutation
from dse.study.study import Study

STUDY = """
name: {name}
workloads: ["{workload}"]
machine: edge_array
space:
  array.x: {{from: 4, to: 64, step: 1}}
  array.y: {{from: 4, to: 64, step: 1}}
  gbuf.capacity: {{from: 32 KiB, to: 2 MiB, step: 1 KiB}}
  regf.capacity: {{from: 32 B, to: 1024 B, step: 2 B}}
  clock_mhz: [250, 500, 750, 1000]
  dram.kind: [ddr3, ddr4, lpddr4, lpddr5, gddr6, hbm2]
objectives: [energy_pj, latency_ns, area_mm2]
search: {{method: random, seed: 7, prune: true}}
stop: {{machines: {points}}}
"""
SHARING = """
name: sharing
workloads: [{workload}]
machine: edge_array
space:
  array.x: [16, 32]
  dram.kind: [ddr3, ddr4, lpddr4, lpddr5, gddr6, hbm2]
  dram.channels: [1, 2, 4]
  node_nm: [22, 24, 28, 32, 36, 40, 45]
  cell: [lop, hp]
  clock_mhz: {{from: 200, to: {to}, step: {step}}}
objectives: [energy_pj, latency_ns, area_mm2]
search: {{method: exhaustive, seed: 7, generation: 65536}}
solver: {{sharing_gap: 0.1}}
"""
STRUCTURAL = """
name: structural
workloads: [{workload}]
machine: edge_array
space:
  array.x: {x}
  array.y: {y}
  gbuf.capacity: [{gbuf}]
  regf.capacity: [{regf}]
  dram.kind: [ddr3, ddr4, lpddr4, lpddr5, gddr6, hbm2]
  clock_mhz: [500, 1000]
objectives: [energy_pj, latency_ns, area_mm2]
search: {{{search}}}
solver: {{gap: {gap}, sharing_gap: {sharing_gap}}}
"""
VARIED = """
name: varied
workloads: ["gemm:m=64,n=96,k=128"]
machine: edge_array
space:
  array.x: {from: 4, to: 64, step: 2}
  array.y: {from: 4, to: 64, step: 2}
  gbuf.capacity: {from: 16 KiB, to: 512 KiB, step: 16 KiB}
  regf.capacity: {from: 64 B, to: 560 B, step: 16 B}
objectives: [energy_pj, latency_ns, area_mm2]
search: {method: exhaustive}
solver: {sharing_gap: 0.05}
"""
ANY = {  # sizes of any edge array
    **dict.fromkeys("xy", "{from: 4, to: 64, step: 1}"),
    "gbuf": "16 KiB, 32 KiB, 64 KiB, 128 KiB, 256 KiB, 512 KiB, 1 MiB, 2 MiB",
    "regf": "64 B, 96 B, 128 B, 192 B, 256 B, 384 B, 512 B",
}
DEFAULTS = {
    "machines": 100_000,
    "solved": 120,
    "million": 1_000_000,
    "workers": 2,
    "drawn": 1_000_000,
    "shared": 65_536,
    "whole": 1_000_000,
    "structural": 4096,
    "alone": 24,
    "structures": 60,
    "varied": 0,
}
SHARED = 125_000  # machines of a cell
PRODUCT = "gemm:m=64,n=96,k=128"
ALONE = 200  # machines that are looked at one by one
LEASE = 4096
SIZES = ("array.x", "array.y", "gbuf.capacity", "regf.capacity")  # a mapping that fits fits larger ones


def study(folder: Path, workload: str, points: int) -> Study:
    name = workload.partition(":")[0]
    path = folder / f"{name}-{points}.yaml"
    path.write_text(STUDY.format(name=name, workload=workload, points=points))
    return studies.load(path)


def front_of(job: Job, run: Path) -> tuple[Trial, ...]:
    """Of a run's points."""
    known, (store, _) = RunState(job.study), stores.open_run(run)
    for part in stores.row_groups(store, known.columns()):
        known.learn(part["machines"], part.get("points"))
    stores.close(store)
    return known.front_before(1 << 30)


def spent(seconds: Counter[str], step: str, call: Callable[..., Any], *given: Any) -> Any:
    """What a call returns; its CPU seconds are added to those of the step."""
    begun = time.process_time()
    found = call(*given)
    seconds[step] += time.process_time() - begun
    return found


def ruled_out(folder: Path, workload: str, machines: int, solved: int) -> None:
    driver.run(study(folder, workload, solved), folder / workload, workers=0)
    job = job_of(study(folder, workload, solved))
    front, ruler = front_of(job, folder / workload), job.pruner
    seconds = Counter[str]()
    timed = partial(spent, seconds)
    store, _ = stores.open_run(folder / f"{workload}-parts")
    tables, out, example = [], 0, np.empty(0, np.int64)
    for again in (False, True):  # the first time prices levels that are kept, and compiles
        seconds.clear()
        for first in range(0, machines if again else LEASE, LEASE):
            places = np.arange(first, min(first + LEASE, machines), dtype=np.int64) + solved
            numbers = timed("numbers", permutation, job.study.space.size, 7, places)
            built, columns = timed("columns", ruler.table.columns, numbers)
            floors = timed("bounds", ruler.lower_bounds, columns)
            given = job.study.objectives, floors, job.study.weights(), columns.area_mm2
            lower = timed("front", prune.objective_bounds_of_many, *given)
            beaten = timed("front", prune.first_dominating, front, lower)
            found = timed("rows", ruler.columns_of, numbers[built], columns, floors, front, beaten)
            rows = int((beaten >= 0).sum())
            of_asks = {"generation": pa.array([0] * rows), "source": pa.array(["random"] * rows)}
            if again:
                table = timed("rows", pruning.table_of, job.schemas["machines"], found | of_asks, rows)
                tables.append({"machines": table})
            out, example = out + rows * again, found["machine"].to_numpy()
        timed("commit", stores.commit, store, tables)
    stores.close(store)
    size = sum(path.stat().st_size for path in (folder / f"{workload}-parts" / "parts").rglob("*.parquet"))
    begun = time.process_time()
    for machine in example[:ALONE].tolist():
        solve_machine(job, Ask(machine, 0, "random"), front)
    alone = (time.process_time() - begun) / min(ALONE, len(example))
    whole, einsums = sum(seconds.values()) / machines, sum(map(len, job.uniques))
    shares = ", ".join(f"{step} {value / machines * 1e6:.1f}" for step, value in seconds.items())
    print(
        f"{workload}: {machines} machines, front of {len(front)}, {out / machines:.1%} ruled out; "
        f"{whole * 1e6:.1f} us each ({shares}), {1 / whole:,.0f} machines and {einsums / whole:,.0f} "
        f"(machine, einsum) bounds a second and core; {size / max(out, 1):.0f} bytes a row",
        flush=True,
    )
    print(f"{workload}: one by one {alone * 1e6:.0f} us, {alone / whole:.0f} times as long", flush=True)


def used(root: int, cpu: dict[int, float]) -> float:
    """MB of a process and all below it, proportional shares; cpu: seconds of each, as last seen."""
    parents, spent, ticks = {}, dict[int, float](), os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], spent[int(entry.name)] = (
                    int(fields[1]),
                    (int(fields[11]) + int(fields[12])) / ticks,
                )
    family, size = {root}, 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    cpu |= {pid: spent[pid] for pid in family & spent.keys()}
    total = 0
    for pid in family:
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def watched(arguments: list[str]) -> tuple[float, list[float], float]:
    """Wall seconds of a command, the memory of its processes twice a second, and their CPU seconds."""
    begun, samples, cpu = time.monotonic(), list[float](), dict[int, float]()
    process = subprocess.Popen([sys.executable, "-m", "dse", *arguments], stdout=subprocess.DEVNULL)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            samples.append(used(process.pid, cpu))

    watch = threading.Thread(target=look)
    watch.start()
    code = process.wait()
    ended.set()
    watch.join()
    if code:
        sys.exit(f"dse {' '.join(arguments)} ended with {code}")
    return time.monotonic() - begun, samples or [0.0], sum(cpu.values())


def million(folder: Path, machines: int, workers: int) -> None:
    study(folder, PRODUCT, machines)
    path, run = folder / f"gemm-{machines}.yaml", folder / "million"
    wall, samples, _ = watched(["run", str(path), "--out", str(run), "--workers", str(workers)])
    half = max(samples[len(samples) // 4 : len(samples) // 2] or samples)
    size = sum(entry.stat().st_size for entry in run.rglob("*") if entry.is_file())
    print(
        f"{machines} machines, {workers} workers: {wall:.0f} s; memory {max(samples):.0f} MB, {half:.0f} MB "
        f"by the half; {size / machines:.0f} bytes of disk each",
        flush=True,
    )
    wall, samples, _ = watched(["resume", str(run), "--workers", "0"])
    print(f"resume with nothing to do: {wall:.1f} s, {max(samples):.0f} MB", flush=True)


def drawn(folder: Path, workload: str, points: int, solved: int) -> tuple[Path, Study]:
    """A run of so many machines that makes choices as the solver does: each has those of one of `solved`
    machines whose arrays and memories are no larger, so that they fit. Energies and latencies are drawn; all
    other columns are its own.
    """
    one, run, rng = study(folder, workload, points), folder / "drawn", np.random.default_rng(1)
    job = job_of(one)
    store, _ = stores.open_run(run)
    (run / folders.STUDY).write_bytes(studies.files(one)[folders.STUDY])
    store = stores.with_study(store, folders.digest(studies.identity(one)))
    numbers = permutation(one.space.size, 11, np.arange(solved, dtype=np.int64)).tolist()
    solved_batches = solve_lease(job, Lease(0, tuple(Ask(number, 0, "random") for number in numbers))).tables
    tables = {name: pa.Table.from_batches([batch]) for name, batch in solved_batches.items()}
    donors, sizes = (
        tables["chosen"]["machine"].to_numpy(),
        [at for at, axis in enumerate(one.space.axes) if axis.key in SIZES],
    )
    smallest, rows = job.pruner.table.digits(donors)[:, sizes], 0
    whole = [{name: tables[name] for name in ("mappings", "counts")}]
    for first in range(solved, one.space.size, LEASE):
        machines = permutation(one.space.size, 11, np.arange(first, first + LEASE, dtype=np.int64))
        built, columns = job.pruner.table.columns(machines)
        fits, order = (
            (job.pruner.table.digits(machines)[:, None, sizes] >= smallest).all(axis=2),
            rng.permutation(len(donors)),
        )
        kept = fits.any(axis=1) & built
        chosen = tables["chosen"].take(pa.array(order[fits[:, order].argmax(axis=1)][kept]))
        floors, nobody = job.pruner.lower_bounds(columns), Trial(0, 0, "ok", (), ())
        of_machines = job.pruner.columns_of(
            machines[built], columns, floors, [nobody], np.where(kept[built], 0, -1)
        )
        n = int(kept.sum())
        fixed = {
            "status": "ok",
            "source": "random",
            "generation": 0,
            "model_version": MODEL_VERSION,
            "solver_version": SOLVER_VERSION,
        }
        of_machines |= {name: pa.repeat(pa.scalar(value), n) for name, value in fixed.items()} | {
            name: pa.nulls(n) for name in ("reason", "dominated_by")
        }
        own = {
            "energy_pj": pa.array(1e9 * rng.lognormal(sigma=0.3, size=n)),
            "latency_cycles": pa.array(np.round(1e6 * rng.lognormal(sigma=0.3, size=n))),
        }
        of_points = {
            "machine": pa.array(machines[kept]),
            "schedule": pa.repeat(0, n),
            "feasible": pa.repeat(True, n),
            **own,
        }
        whole.append(
            {
                "machines": pruning.table_of(job.schemas["machines"], of_machines, n),
                "points": pruning.table_of(job.schemas["points"], of_points, n),
                "chosen": chosen.set_column(0, job.schemas["chosen"].field(0), pa.array(machines[kept])),
            }
        )
        rows += n
        if len(whole) > 24 or rows >= points:
            store, whole = stores.compact(stores.commit(store, whole)), []
        if rows >= points:
            break
    stores.close(store)
    stores.close(stores.open_run(run)[0])  # takes merged parts away
    return run, one


def queries(folder: Path, workload: str, points: int, solved: int) -> None:
    """Fronts, and what is computed when asked, of a run that is drawn."""
    run, one = drawn(folder, workload, points, solved)
    size = sum(part.size_bytes for group in folders.read(run).groups for part in group.parts)
    con = runs.connection(run, one)
    (count,) = con.execute("SELECT count(*) FROM machines").fetchall()[0]
    parts = Counter({part.table: 0 for group in folders.read(run).groups for part in group.parts})
    for group in folders.read(run).groups:
        parts.update({part.table: part.size_bytes for part in group.parts})
    print(
        f"{workload}: {count} machines drawn, each with the choices of one of {solved} solved ones: "
        f"{size / count:.1f} bytes of disk each ("
        + ", ".join(f"{table} {n / count:.1f}" for table, n in parts.most_common() if n >= count / 20)
        + ")",
        flush=True,
    )
    best = "(SELECT machine FROM designs ORDER BY energy_pj LIMIT {})"
    sums = "SELECT level, tensor, sum(energy_pj) FROM traffic WHERE machine IN {} GROUP BY ALL"
    mappings = "SELECT DISTINCT mapping_key FROM choices WHERE machine IN {}"
    asked = {
        "statuses of all machines": "SELECT status, count(*) FROM machines GROUP BY 1",
        "einsums of one machine": "SELECT * FROM einsums WHERE machine = (SELECT max(machine) FROM points)",
        **{f"energy by level and tensor of the best {n}": sums.format(best.format(n)) for n in (1, 1000)},
        "different mappings of the best 1000": mappings.format(best.format(1000)),
    }
    for text in ("front", "front again"):
        begun, cpu = time.monotonic(), time.process_time()
        found = db.front(con, [o.column for o in one.objectives])
        print(
            f"{text} of {count} points, {len(one.objectives)} objectives: {found.num_rows} rows, "
            f"{_took(begun, cpu)}",
            flush=True,
        )
    for name, query in asked.items():
        for again in ("", " again"):
            begun, cpu = time.monotonic(), time.process_time()
            print(f"{name}{again}: {db.query(con, query).num_rows} rows, {_took(begun, cpu)}", flush=True)


def sharing(folder: Path, workload: str, machines: int) -> Path:
    """A study of about so many machines of two arrays, which share mappings; all that changes prices, rates
    and clock varies.
    """
    path, clocks = folder / f"sharing-{workload}-{machines}.yaml", max(1, machines // 504)
    path.write_text(
        SHARING.format(workload=workload, to=200 + 1000 * (clocks - 1) / clocks, step=1000 / clocks)
    )
    return path


def shared(folder: Path, workload: str, machines: int, solved: int) -> None:
    """Of one array: the table; leases of random machines by step; beside machines solved exactly."""
    job = job_of(studies.load(sharing(folder, workload, 2 * SHARED)))
    assert job.batch_index
    exact = job_of(replace(job.study, solver=replace(job.study.solver, sharing_gap=0.0)))
    solve_lease(exact, Lease(0, (Ask(0, 0, "bench"),)))  # loads the kernels
    seconds = Counter[str]()
    timed = partial(spent, seconds)
    block, _ = timed("columns", next, job.batch_index.of(np.array([0])))
    found = timed("table", block.solved_tables)
    print(
        f"{workload}: a cell of {len(block.machines)} machines in {seconds['columns']:.1f} CPU s, its table "
        f"in {seconds['table']:.1f}; {sum(len(own.mappings) for own in found if isinstance(own, Table))} "
        f"mappings of {len(job.uniques[0])} einsums",
        flush=True,
    )
    numbers = np.random.default_rng(3).choice(
        block.machines, min(machines, len(block.machines)), replace=False
    )
    asks = [Ask(int(number), 0, "bench") for number in numbers]
    store, _ = stores.open_run(folder / f"sharing-{workload}")
    leases = [tuple(asks[at : at + LEASE]) for at in range(0, len(asks), LEASE)]
    solve_lease(job, Lease(0, leases[0]))  # what einsums need of bounds
    seconds.clear()
    summed = batch_eval.sums_at
    batch_eval.sums_at = lambda *given: timed("price", summed, *given)
    batches = [timed("lease", solve_lease, job, Lease(0, own)).tables for own in leases]
    tables = [{name: pa.Table.from_batches([rows]) for name, rows in one.items()} for one in batches]
    batch_eval.sums_at = summed
    timed("commit", stores.commit, store, tables)
    stores.close(store)
    begun = time.process_time()
    solve_lease(exact, Lease(0, tuple(asks[:solved])))
    alone, whole = (time.process_time() - begun) / solved, (seconds["lease"] + seconds["commit"]) / len(asks)
    of_each = {
        "price": seconds["price"],
        "other columns and rows": seconds["lease"] - seconds["price"],
        "commit": seconds["commit"],
    }
    shares = ", ".join(f"{step} {1e6 * value / len(asks):.1f}" for step, value in of_each.items())
    print(
        f"{workload}: {1e6 * whole:.1f} us a machine ({shares}), {1 / whole:,.0f} machines and "
        f"{len(job.uniques[0]) / whole:,.0f} prices a second and core; solved exactly, {solved} together: "
        f"{1e3 * alone:.1f} ms a machine, {alone / whole:.0f} times",
        flush=True,
    )


def whole(folder: Path, workload: str, machines: int, workers: int) -> None:
    """A run of machines that share mappings, with an empty cache, and again with its tables kept."""
    study_file = sharing(folder, workload, machines)
    for name in ("empty cache", "tables kept"):
        run = folder / f"whole-{machines}-{name.partition(' ')[0]}"
        with patch.dict(os.environ, DSE_CACHE=str(folder / f"cache-{machines}")):
            wall, samples, cpu = watched(
                ["run", str(study_file), "--out", str(run), "--workers", str(workers)]
            )
        manifest = folders.read(run)
        done = (folders.status(run, manifest.identity) or {"done": 1})["done"]
        size = sum(part.size_bytes for group in manifest.groups for part in group.parts)
        print(
            f"{workload}: {done} machines, {workers} workers, {name}: {wall:.0f} s, {cpu:.0f} CPU s of all "
            f"processes, Ray's too: {done / cpu:,.0f} machines a second and core; memory {max(samples):.0f} "
            f"MB; {size / done:.0f} bytes of disk each",
            flush=True,
        )


def varied(folder: Path, workers: int) -> None:
    """A run of 984,064 structures of a matrix product, from an empty cache."""
    study_file, run = folder / "varied.yaml", folder / "varied"
    study_file.write_text(VARIED)
    with patch.dict(os.environ, DSE_CACHE=str(folder / "cache-varied")):
        wall, samples, cpu = watched(["run", str(study_file), "--out", str(run), "--workers", str(workers)])
    machines = studies.load(study_file).space.size
    size = sum(entry.stat().st_size for entry in run.rglob("*") if entry.is_file())
    eighths = [max(samples[len(samples) * i // 8 : len(samples) * (i + 1) // 8] or samples) for i in range(8)]
    print(
        f"{machines} structures, {workers} workers: {wall:.0f} s, {cpu:.0f} CPU s of all processes: "
        f"{machines / cpu:,.0f} structures a second and core; memory by eighths of the time "
        f"{', '.join(f'{mb:.0f}' for mb in eighths)} MB; {size / machines:.0f} bytes of disk each",
        flush=True,
    )


def lattice(seed: int) -> dict[str, str]:
    """16 array shapes and 25 pairs of capacities, drawn at random."""
    rng = np.random.default_rng(seed)
    of_arrays = (str(sorted(rng.choice(np.arange(4, 65), 4, replace=False).tolist())) for _ in "xy")
    gbuf, regf = (
        ", ".join(f"{size} {unit}" for size in sorted(rng.choice(sizes, 5, replace=False).tolist()))
        for sizes, unit in ((np.arange(32, 2049, 16), "KiB"), (np.arange(64, 513, 16), "B"))
    )
    return dict(zip(("x", "y", "gbuf", "regf"), (*of_arrays, gbuf, regf), strict=True))


def structural(
    folder: Path, workload: str, gap: float, machines: int, alone: int, of_lattices: bool = True
) -> None:
    """Random batches of random lattices of 4,800 machines, one batch of each lattice, until there are so many
    machines (else one batch of so many random machines of any size); beside some of the last batch alone.
    """
    search = "method: exhaustive" if of_lattices else f"method: random, seed: 7, generation: {machines}"

    def job(seed: int, sharing_gap: float, own_gap: float) -> Job:
        path = folder / f"structural-{workload}-{sharing_gap}-{seed}.yaml"
        path.write_text(
            STRUCTURAL.format(
                workload=workload,
                search=search,
                gap=own_gap,
                sharing_gap=sharing_gap,
                **(lattice(seed) if of_lattices else ANY),
            )
        )
        return job_of(studies.load(path))

    load_kernels()
    seconds, done, batches, gaps = Counter[str](), 0, 0, [0.0]
    while done < machines:
        many = job(batches, gap, min(gap, 0.01))
        assert many.batch_index
        begun = time.process_time()
        size = many.study.space.size
        first = np.random.default_rng(batches).integers(size, size=1)
        if not of_lattices:
            first = generation_machines(many.study.search, size, batches)[:1]
        block, _ = next(many.batch_index.of(first))
        found = block.solved_tables()[0]
        assert isinstance(found, Table)
        fits = np.flatnonzero(found.fits)
        gaps += batch_eval.sums_at(block.batch, found, fits).optimality_gap.tolist()
        seconds["together"] += time.process_time() - begun
        done, batches = done + len(block.machines), batches + 1
        print(
            f"{workload}, {gap:.0%}: {done} machines, {done / seconds['together']:.1f} a second", flush=True
        )
    one_by_one = job(batches - 1, 0.0, gap)
    own = block.machines[:: max(1, len(block.machines) // max(1, alone))][:alone].tolist()
    for number in own:
        spent(seconds, "alone", solve_machine, one_by_one, Ask(number, 0, "bench"))
    together, each = seconds["together"] / done, seconds["alone"] / max(1, len(own))
    print(
        f"{workload}, gap {gap:.0%}: {done} machines in {batches} batches, {1 / together:.1f} machines a "
        f"second and core" + f" (alone {1 / each:.2f}: {each / together:.0f} times)" * bool(own) + f"; gaps "
        f"{np.mean(gaps):.1%} in the mean, {max(gaps):.1%} at most",
        flush=True,
    )


def _took(begun: float, cpu: float) -> str:
    return f"{time.monotonic() - begun:.2f} s, {time.process_time() - cpu:.2f} CPU s"


def main() -> None:
    given = argparse.ArgumentParser()
    for name, default in DEFAULTS.items():
        given.add_argument(f"--{name}", type=int, default=default)
    chosen = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for workload in ("light_resnet50", "squeezenet") if chosen.machines else ():
            ruled_out(Path(folder), workload, chosen.machines, chosen.solved)
        for workload in ("light_resnet50", "squeezenet") if chosen.shared else ():
            shared(Path(folder), workload, chosen.shared, chosen.solved)
        for workload in ("light_squeezenet", "light_resnet50") if chosen.structural else ():
            for gap in (0.05, 0.01):
                structural(
                    Path(folder), workload, gap, chosen.structural // (4 if gap < 0.05 else 1), chosen.alone
                )
        for workload in ("light_squeezenet", "light_resnet50") if chosen.structures else ():
            for gap in (0.05, 0.01):
                structural(Path(folder), workload, gap, chosen.structures, chosen.alone, False)
        if chosen.whole:
            whole(Path(folder), "light_resnet50", chosen.whole, chosen.workers)
        if chosen.varied:
            varied(Path(folder), chosen.workers)
        if chosen.million:
            million(Path(folder), chosen.million, chosen.workers)
        if chosen.drawn:
            queries(Path(folder), "light_resnet50", chosen.drawn, chosen.solved)


if __name__ == "__main__":
    main()
