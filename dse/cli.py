"""The command `dse`: parses, joins the packages, prints. Exit 0, 1 failed, 2 wrong input."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a folder hw or cluster of the user must not be found first

from dse import arguments, screen
from hw.arch import Arch

if TYPE_CHECKING:  # what a command needs, it imports: start-up stays short
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from dse.study.study import Study


MOST_LINES = 40  # of faults that are shown at once


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments.parser().parse_args(argv)
    if given.command not in ("run", "resume"):  # a run outlives its reader
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    code = _exit_code(given)
    if any(thread.name == "dse sql" for thread in threading.enumerate()):  # a statement that takes no interrupt cannot be taken down in order
        sys.stdout.flush()
        os._exit(code)
    return code


def _exit_code(given: argparse.Namespace) -> int:
    try:
        return COMMANDS[given.command](given)
    except ValueError as fault:
        if os.environ.get("DSE_TRACEBACK"):
            raise
        lines = list(dict.fromkeys(map(_plain, str(fault).splitlines())))
        print("\n".join([*lines[:MOST_LINES], *([f"... and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else [])]), file=sys.stderr)
        return int(getattr(fault, "exit_code", 2))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _plain(line: str) -> str:
    """A line that may quote a file of somebody else: no control characters, and no more than can be read."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)
    return shown if len(shown) <= 1000 else f"{shown[:1000]} ..."


def _run(given: argparse.Namespace) -> int:
    from dse.study import study as studies

    study = studies.load(given.study, given.set)
    if given.dry_run:
        from cluster import driver

        screen.print_facts(driver.dry_run(study, given.workers))
        return 0
    return _drive(study, Path(given.out or f"runs/{study.name}"), given)


def _resume(given: argparse.Namespace) -> int:
    from cluster import store
    from dse.study import study as studies

    out = Path(given.dir)
    mended = store.mend(out)
    return _drive(studies.load(out / "study.yaml", within=out), out, given, mended)


def _drive(study: Study, out: Path, given: argparse.Namespace, mended: Sequence[str] = ()) -> int:
    from cluster import driver

    with screen.Progress(study.name) as progress:
        outcome = driver.run(study, out, given.workers, given.address, progress.show, mended)
    for note in outcome.status.notes:
        print(note, file=sys.stderr)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    screen.print_end(str(out), outcome.status, outcome.solved, outcome.built)
    return int(outcome.exit_code)


def _study_of(text: str) -> Study:
    """The study of a run, if it is the one that its rows are of. Raises ValueError."""
    from dse import folder
    from dse.study import study as studies

    root = Path(text)
    path = root / folder.STUDY
    if not root.is_dir() or not (path.exists() or (root / folder.MANIFEST).exists()):
        raise ValueError(f"{text}: no run is there (study.yaml is missing); start one with dse run STUDY.yaml --out {text}")
    manifest = folder.read(root)
    if lines := folder.heads(root, manifest) or ([] if path.exists() else [f"{path}: missing; {folder.way_on(root)}"]):
        raise folder.Damaged("\n".join(lines))
    study = studies.load(path, within=root)
    if lines := folder.same_study(root, manifest, studies.identity(study)):
        raise folder.Damaged("\n".join(lines))
    if manifest.groups and folder.env(root, manifest) is None:
        print(f"{root / folder.ENV}: lost, damaged or of another run; {folder.way_on(root)}", file=sys.stderr)
    return study


def _connect(given: argparse.Namespace) -> tuple[Study, DuckDBPyConnection]:
    from analysis import db
    from dse import record
    from dse.study import study as studies

    study = _study_of(given.dir)
    schemas = {table: record.schema(table, studies.columns(study, table)) for table in record.TABLES}
    return study, db.connect(given.dir, schemas, skip_damaged=given.skip_damaged, memory=given.memory)


def _status(given: argparse.Namespace) -> int:
    from dse import check

    _study_of(given.dir)
    facts = check.status(Path(given.dir), given.skip_damaged)
    screen.print_json(facts) if given.json else screen.print_facts(facts)
    return 0


def _pareto(given: argparse.Namespace) -> int:
    from analysis import db
    from dse.study import study as studies

    study, con = _connect(given)
    objectives = given.objectives.split(",") if given.objectives else [f"{o.column}:{o.direction}" for o in study.objectives]
    found = db.front(con, objectives, given.where, given.timeout)
    if given.format == "table":
        names = [o.removeprefix("-").rsplit(":", 1)[0] for o in objectives]
        found = found.select(["machine", "schedule", *names, *studies.columns(study, "machines"), *(["gap"] if "gap" not in names else [])])
    return _print_result(found, given.format)


def _sql(given: argparse.Namespace) -> int:
    from analysis import db

    _, con = _connect(given)
    if given.statement:
        return _print_result(db.query(con, given.statement, given.timeout), given.format)
    print(f"views: {', '.join(db.query(con, 'SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1')[0].to_pylist())}; an empty line ends")
    while statement := screen.ask("dse> "):
        try:
            _print_result(db.query(con, statement, given.timeout), given.format)
        except ValueError as fault:
            print(fault)
    return 0


def _print_result(found: pa.Table, form: str) -> int:
    if form == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
    else:
        columns = [_values(found, at) for at in range(found.num_columns)]
        screen.print_rows(found.column_names, list(zip(*columns, strict=True)), form)
    return 0


def _values(found: pa.Table, at: int) -> list[object]:
    """Of a column; Python has no dates beyond the year 9999, nor structs with one name twice."""
    try:
        return list(found.column(at).to_pylist())
    except (ValueError, OverflowError, TypeError, ArithmeticError) as fault:
        raise ValueError(f"column {found.column_names[at]} holds what cannot be shown ({' '.join(str(fault).split())[:200]}); cast it: ::VARCHAR") from None


def _show(given: argparse.Namespace) -> int:
    from analysis import db
    from dse import nest, stack
    from dse.study import study as studies
    from hw.space import decode

    study, con = _connect(given)
    machine, schedule = _point(study, con, given.point)
    rows = db.query(con, f"FROM machines WHERE machine = {machine}").to_pylist()
    if not rows:
        why = "is not solved yet; see dse status" if machine < study.space.size else f"is none; the space has machines 0 to {study.space.size - 1}"
        raise ValueError(f"{given.dir}: POINT = {given.point}: machine {machine} {why}")
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
            raise ValueError(f"{given.dir}: POINT = {given.point}: machine {machine} has no schedule {schedule}; try {machine}.0")
        found = stack.again(arch, workload, study.solver, {row["einsum"]: row["nest"] for row in nests})
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
            raise ValueError("POINT = best: the front is empty; dse sql can tell why (SELECT status, reason FROM machines)")
        return rows[0]["machine"], rows[0]["schedule"]
    if found := re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", text):
        return int(found[1]), int(found[2] or 0)
    raise ValueError(f"POINT = {text}: give MACHINE, MACHINE.SCHEDULE or best")


def _map(given: argparse.Namespace) -> int:
    from dse import explain, stack
    from dse.study import read
    from hw import machine, space
    from workloads import catalog
    from workloads.graph import unique

    faults = read.Faults([])
    sets = dict(read.assignment(text, faults) for text in given.set)
    block = {key.removeprefix("solver."): value for key, value in sets.items() if key.startswith("solver.")}
    picks = read.solver(({"objective": given.objective} if given.objective else {}) | block, faults)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    spec = space.override(machine.load(given.machine), {key: value for key, value in sets.items() if not key.startswith("solver.")})
    arch, workload = machine.arch(spec), catalog.load(given.workload, fuse_elementwise=picks.fuse_elementwise)
    with screen.waiting(f"mapping {workload.name} on {arch.name} (unique einsums: {len(unique(workload))})"):
        found = stack.kept(arch, workload, picks)
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
    try:
        found = evaluate(arch, workload, schedule)
    except ValueError as fault:
        raise ValueError("\n".join(f"{given.mapping}: {line}" for line in str(fault).splitlines())) from None
    return screen.print_solution(arch, workload, found, given.einsum, given.format)


def _check(given: argparse.Namespace) -> int:
    from dse import check

    faults = []
    for text in given.files:
        try:
            line, layers = check.file(text)
            print(f"{text}: {line}")
            if layers:
                screen.print_table(layers[0]._fields, layers)
        except ValueError as fault:
            faults.append(str(fault))
    if faults:
        raise ValueError("\n".join(faults))
    return 0


def _list(given: argparse.Namespace) -> int:
    from dse import check

    screen.print_table(*check.listing(given.what))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run, "resume": _resume, "status": _status, "pareto": _pareto, "sql": _sql, "show": _show,
    "map": _map, "simulate": _simulate, "check": _check, "list": _list}


if __name__ == "__main__":
    sys.exit(main())
