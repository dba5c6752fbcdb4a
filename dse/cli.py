"""The command `dse`: parses, joins the packages, prints. Exit 0, 1 failed, 2 wrong input."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dse import screen
from hw.arch import Arch

if TYPE_CHECKING:  # what a command needs, it imports: start-up stays short
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from dse.study.study import Study

FORMATS = ("table", "csv", "json", "parquet")
EXAMPLES = {
    "run": "dse run studies/edge_cnn.yaml --workers 2 --set stop.points=60",
    "resume": "dse resume runs/edge-cnn",
    "status": "dse status runs/edge-cnn --json",
    "pareto": "dse pareto runs/edge-cnn --objectives energy_pj,latency_ns --where 'area_mm2 < 2'",
    "sql": 'dse sql runs/edge-cnn "SELECT status, count(*) FROM machines GROUP BY status"',
    "show": "dse show runs/edge-cnn best --einsum Conv_n7",
    "map": "dse map resnet50:batch=1 edge_array --objective edp --set gbuf.capacity='256 KiB'",
    "simulate": "dse simulate gemm:m=64,n=32,k=48 a3 mapping.txt",
    "check": "dse check studies/edge_cnn.yaml hw/machines/edge_array.yaml",
    "list": "dse list workloads",
}


def main(argv: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    given = _parser().parse_args(argv)
    try:
        return int(given.command(given))
    except ValueError as fault:
        if os.environ.get("DSE_TRACEBACK"):
            raise
        print(fault, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dse", description="Design-space exploration of tensor accelerators: hardware x mapping, results in Parquet and SQL.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str, *positional: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=f"example: {EXAMPLES[name]}")
        sub.set_defaults(command=command)
        for word in positional:
            sub.add_argument(word.lower(), metavar=word)
        return sub

    run = add("run", _run, "start a study's run, or go on with it", "STUDY")
    run.add_argument("--out", metavar="DIR", help="run folder (default: runs/<name of the study>)")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the study, e.g. stop.points=60")
    resume = add("resume", _resume, "go on with a run from the study in its folder", "DIR")
    for sub in (run, resume):
        sub.add_argument("--workers", type=int, metavar="N", help="actors (default: one per core); 0 runs in this process, without Ray")
        sub.add_argument("--address", metavar="ADDR", help="an existing Ray cluster")
    run.add_argument("--dry-run", action="store_true", help="what the run would cost, from 20 probes; starts nothing")
    status = add("status", _status, "what a run has done; works while it runs", "DIR")
    status.add_argument("--json", action="store_true")
    front = add("pareto", _pareto, "the front of a run", "DIR")
    front.add_argument("--objectives", metavar="A,B,...", help="columns of points; -x or x:max maximises (default: the study's)")
    front.add_argument("--where", default="", metavar="SQL", help="condition over points and machines")
    sql = add("sql", _sql, "one read-only statement over the views; without a statement: a prompt", "DIR")
    sql.add_argument("statement", nargs="?", metavar="SELECT...")
    for sub in (front, sql):
        sub.add_argument("--format", choices=FORMATS, default="table")
    shown = add("show", _show, "explain a point of a run: MACHINE, MACHINE.SCHEDULE or best", "DIR", "POINT")
    mapped = add("map", _map, "solve one workload on one machine", "WORKLOAD", "MACHINE")
    mapped.add_argument("--objective", choices=("energy", "latency", "edp"), help="default: energy")
    mapped.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="solver.KEY=VALUE, or a field of the machine such as gbuf.capacity")
    mapped.add_argument("--format", choices=("text", "json", "yaml"), default="text")
    simulated = add("simulate", _simulate, "cost a given mapping", "WORKLOAD", "MACHINE", "MAPPING")
    simulated.add_argument("--format", choices=("text", "json"), default="text")
    for sub in (shown, mapped, simulated):
        sub.add_argument("--einsum", metavar="NAME", help="this einsum's nest, traffic and footprints")
    checked = add("check", _check, "validate files, all faults at once")
    checked.add_argument("files", nargs="+", metavar="FILE")
    add("list", _list, "what exists").add_argument("what", choices=("workloads", "machines", "solvers", "columns"))
    return parser


def _run(given: argparse.Namespace) -> int:
    from dse.study import study as studies

    study = studies.load(given.study, given.set)
    if given.dry_run:
        from cluster import driver

        screen.print_facts(driver.dry_run(study, given.workers))
        return 0
    return _drive(study, Path(given.out or f"runs/{study.name}"), given)


def _resume(given: argparse.Namespace) -> int:
    return _drive(_study_of(given.dir), Path(given.dir), given)


def _drive(study: Study, out: Path, given: argparse.Namespace) -> int:
    from cluster import driver

    with screen.Progress(study.name) as progress:
        outcome = driver.run(study, out, given.workers, given.address, progress.show)
    print(f"{out}: {outcome.status.state}, {outcome.status.reason}; {outcome.solved} machines solved now, {outcome.status.done} in all"
          f" ({outcome.status.infeasible} infeasible, {outcome.status.pruned} pruned, {outcome.status.error} errors), front {outcome.status.front}")
    print(f"next: dse pareto {out}   dse show {out} best   dse sql {out} \"SELECT ...\"")
    return outcome.exit_code


def _study_of(folder: str) -> Study:
    from dse.study import study as studies

    path = Path(folder) / "study.yaml"
    if not path.is_file():
        raise ValueError(f"{folder}: no run is there (study.yaml is missing); start one with dse run STUDY.yaml --out {folder}")
    return studies.load(path)


def _connect(folder: str) -> tuple[Study, DuckDBPyConnection]:
    from analysis import db
    from dse import record
    from dse.study import study as studies

    study = _study_of(folder)
    return study, db.connect(folder, {table: record.schema(table, studies.columns(study, table)) for table in record.TABLES})


def _status(given: argparse.Namespace) -> int:
    _study_of(given.dir)
    path = Path(given.dir) / "status.json"
    facts = json.loads(path.read_text()) if path.exists() else {"state": "not started", "done": 0}
    if given.json:
        print(json.dumps({key: screen.plain(value) for key, value in facts.items()}, indent=1))
    else:
        screen.print_facts(facts)
    return 0


def _pareto(given: argparse.Namespace) -> int:
    from analysis import db

    study, con = _connect(given.dir)
    objectives = given.objectives.split(",") if given.objectives else [f"{o.column}:{o.direction}" for o in study.objectives]
    found = db.front(con, objectives, given.where)
    if given.format == "table":
        from dse.study import study as studies

        names = [o.removeprefix("-").rsplit(":", 1)[0] for o in objectives]
        found = found.select(["machine", "schedule", *names, *studies.columns(study, "machines"), *(["gap"] if "gap" not in names else [])])
    return _print_result(found, given.format)


def _sql(given: argparse.Namespace) -> int:
    from analysis import db

    _, con = _connect(given.dir)
    if given.statement:
        return _print_result(db.query(con, given.statement), given.format)
    names = db.query(con, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' ORDER BY 1")
    print(f"views: {', '.join(names[0].to_pylist())}; an empty line ends")
    while statement := screen.ask("dse> "):
        try:
            _print_result(db.query(con, statement), given.format)
        except ValueError as fault:
            print(fault)
    return 0


def _print_result(found: pa.Table, form: str) -> int:
    if form == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
    else:
        screen.print_rows(found.column_names, list(zip(*(column.to_pylist() for column in found.columns), strict=True)), form)
    return 0


def _show(given: argparse.Namespace) -> int:
    from analysis import db
    from dse import nest
    from dse.sim.evaluate import evaluate
    from dse.study import study as studies
    from hw.space import decode

    study, con = _connect(given.dir)
    machine, schedule = _point(study, con, given.point)
    rows = db.query(con, f"FROM machines WHERE machine = {machine}").to_pylist()
    if not rows:
        raise ValueError(f"{given.dir}: machine {machine} is not there yet; dse sql {given.dir} \"SELECT machine, status FROM machines\"")
    screen.print_facts({key: value for key, value in rows[0].items() if value is not None})
    arch = decode(study.space, machine)
    if rows[0]["status"] != "ok" or not isinstance(arch, Arch):
        return 0
    for ref, workload in zip(study.workloads, studies.workloads_of(study), strict=True):
        name = ref.name.replace("'", "''")
        wanted = f"WHERE machine = {machine} AND schedule = {schedule} AND workload = '{name}'"
        nests = db.query(con, f"SELECT einsum, nest FROM einsums JOIN mappings USING (mapping_key, einsum_key) {wanted}").to_pylist()
        stored = db.query(con, f"SELECT energy_pj, latency_cycles FROM workload_costs {wanted}").to_pylist()
        if not nests:
            raise ValueError(f"{given.dir}: machine {machine} has no schedule {schedule}")
        found = evaluate(arch, workload, {row["einsum"]: nest.parse(row["nest"]) for row in nests}, study.solver.objective)
        if isinstance(found, nest.Infeasible) or stored != [{"energy_pj": found.energy_pj, "latency_cycles": found.latency_cycles}]:
            print(f"{given.dir}: machine {machine}: the stored cost {stored} is not what its mappings cost now", file=sys.stderr)
            return 1
        screen.print_solution(arch, workload, found, given.einsum, "text")
    return 0


def _point(study: Study, con: DuckDBPyConnection, text: str) -> tuple[int, int]:
    """(machine, schedule) of "12", "12.1" or "best": least first objective of the study."""
    from analysis import db

    if text == "best":
        rows = db.front(con, [f"{o.column}:{o.direction}" for o in study.objectives]).select(["machine", "schedule"]).slice(0, 1).to_pylist()
        if not rows:
            raise ValueError("best: the front is empty; dse sql can tell why (SELECT status, reason FROM machines)")
        return rows[0]["machine"], rows[0]["schedule"]
    machine, _, schedule = text.partition(".")
    if not machine.isdigit() or not (schedule or "0").isdigit():
        raise ValueError(f"POINT = {text}: give MACHINE, MACHINE.SCHEDULE or best")
    return int(machine), int(schedule or 0)


def _map(given: argparse.Namespace) -> int:
    from dse import explain, stack
    from dse.study import read
    from hw import machine, space
    from workloads import catalog

    faults = read.Faults([])
    sets = dict(read.assignment(text, faults) for text in given.set)
    block = {key.removeprefix("solver."): value for key, value in sets.items() if key.startswith("solver.")}
    picks = read.solver(({"objective": given.objective} if given.objective else {}) | block, faults)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    spec = space.override(machine.load(given.machine), {key: value for key, value in sets.items() if not key.startswith("solver.")})
    arch, workload = machine.arch(spec), catalog.load(given.workload, fuse_elementwise=picks.fuse_elementwise)
    found = stack.solve(arch, workload, picks)
    if isinstance(found, list) and given.format == "yaml":
        print(yaml.safe_dump(explain.schedule(found[0]), sort_keys=False), end="")
        return 0
    return screen.print_solution(arch, workload, found[0] if isinstance(found, list) else found, given.einsum, given.format)


def _simulate(given: argparse.Namespace) -> int:
    from dse import nest
    from dse.sim.evaluate import evaluate
    from hw import machine
    from workloads import catalog
    from workloads.graph import unique

    arch, workload = machine.arch(machine.load(given.machine)), catalog.load(given.workload)
    schedule = nest.read(Path(given.mapping), [group.names[0] for group in unique(workload)])
    return screen.print_solution(arch, workload, evaluate(arch, workload, schedule), given.einsum, given.format)


def _check(given: argparse.Namespace) -> int:
    from dse import check

    faults = []
    for path in given.files:
        try:
            print(f"{path}: {check.file(Path(path))}")
        except ValueError as fault:
            faults.append(str(fault))
    if faults:
        raise ValueError("\n".join(faults))
    return 0


def _list(given: argparse.Namespace) -> int:
    from dse import record, stack
    from hw import machine
    from workloads import catalog

    if given.what == "workloads":
        screen.print_table(("workload", "parameters"), [(name, catalog.parameters(name)) for name in catalog.names()])
    elif given.what == "machines":
        rows = [(name, machine.arch(machine.load(name))) for name in machine.names()]
        screen.print_table(("machine", "levels", "lanes", "area_mm2"),
                           [(name, " > ".join(level.name for level in arch.levels), arch.instances(len(arch.levels)), arch.area_mm2()) for name, arch in rows])
    elif given.what == "solvers":
        screen.print_table(("key", "value", "does"), [("solver.mapper", name, (mapper.__doc__ or "").split("\n")[0]) for name, mapper in stack.DATAFLOW.items()])
    else:
        rows = [(table, name, c.dtype, c.unit, c.meaning) for table, columns in record.TABLES.items() for name, c in columns.items()]
        screen.print_table(("table", "column", "type", "unit", "meaning"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
