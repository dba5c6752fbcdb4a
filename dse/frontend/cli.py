"""The command `dse`: parses, joins the packages, prints. Exit 0, 1 failed, 2 wrong input."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a folder hw or cluster of the user must not be found first

from dse.explain import units
from dse.frontend import arguments, tables
from dse.mapping.nest import Infeasible

if TYPE_CHECKING:  # what a command needs, it imports: start-up stays short
    import pyarrow as pa

    from dse.study.study import Study
    from workloads.graph import Workload


MOST_LINES = 40  # of faults that are shown at once


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments.parse(argv)
    if given.command not in ("run", "resume"):  # a run outlives its reader
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    before = threading.enumerate()
    code = _exit_code(given)
    left = [thread for thread in threading.enumerate() if thread.name == "dse sql" and thread not in before]
    if left:  # a statement that takes no interrupt cannot be taken down in order
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
    shown = tables.safe(line)
    return shown if len(shown) <= 1000 else f"{shown[:1000]} ..."


def _run(given: argparse.Namespace) -> int:
    from dse.study import study as studies

    study = studies.load(given.study, given.set)
    _warn(*study.loaded)
    if given.dry_run:
        from cluster import driver
        from dse.frontend import progress

        _print_facts(progress.waited(f"{study.name}: probing", lambda _: driver.dry_run(study, given.workers)), given.format)
        return 0
    return _drive(study, Path(given.out or f"runs/{study.name}"), given)


def _warn(*workloads: Workload) -> None:
    from workloads.graph import warnings

    for line in dict.fromkeys(line for workload in workloads for line in warnings(workload)):
        print(_plain(f"warning: {line}"), file=sys.stderr)


def _resume(given: argparse.Namespace) -> int:
    from cluster import store
    from dse.study import study as studies

    out = Path(given.dir)
    mended = store.mend(out)
    return _drive(studies.load(out / "study.yaml", within=out), out, given, mended)


def _drive(study: Study, out: Path, given: argparse.Namespace, mended: Sequence[str] = ()) -> int:
    from cluster import driver
    from dse.frontend import progress

    with progress.RunProgress(study.name) as shown:
        outcome = driver.run(study, out, given.workers, given.address, shown.show, mended)
    for note in outcome.status.notes:
        print(_plain(note), file=sys.stderr)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if given.format == "json":
        tables.print_json({"dir": str(out), "solved": outcome.solved, **asdict(outcome.status)})
    else:
        tables.print_end(str(out), outcome.status, outcome.solved)
        _say_unfused(out, outcome.status.front)
    return int(outcome.exit_code)


def _say_unfused(out: Path, front: int) -> None:
    """What fusing may save on the best machine of a front; a hint, which fails no run."""
    from dse.frontend import api

    with suppress(ValueError):
        for line in api.open(out).unfused() if front else ():
            tables.say(f"best machine: {line}")


def _open(given: argparse.Namespace) -> Any:
    from dse.frontend import api

    return api.open(given.dir, skip_damaged=given.skip_damaged, memory=given.memory, seconds=getattr(given, "timeout", 60.0))


def _status(given: argparse.Namespace) -> int:
    from dse.frontend import api, check

    api.study_of(given.dir)
    _print_facts(check.status(Path(given.dir), given.skip_damaged), given.format)
    return 0


def _print_facts(facts: dict[str, Any], form: str) -> None:
    tables.print_json(facts) if form == "json" else print(tables.facts(facts, room=tables.width()))


def _pareto(given: argparse.Namespace) -> int:
    from analysis import db
    from dse.study import study as studies

    run = _open(given)
    objectives, by = given.objectives.split(",") if given.objectives else run.objectives(), list(filter(None, given.by.split(",")))
    found = run.front(objectives, given.where, by, given.distinct).table
    if given.format != "table":
        return _print_result(found, given)
    names = [*by, "machine", *map(db.column_of, objectives), *(["tied_designs"] if given.distinct else [])]
    parameters = [*studies.columns(run.study, "machines")]
    rest = [*(["schedule"] if any(found["schedule"].to_pylist()) else []), *parameters, "gap_to_bound"]
    alike = {name: found[name][0].as_py() for name in rest if len(found) > 1 and name not in (*names, "gap_to_bound") and len(found[name].unique()) == 1}
    shown = found.select(list(dict.fromkeys([*names, *(name for name in rest if name not in alike)])))
    heads = {name: name if name in parameters else units.label(name) for name in shown.column_names}
    rows = list(zip(*(_values(shown, at) for at in range(shown.num_columns)), strict=True))
    tables.print_rows([*heads.values()], rows, "table", keep=[heads[name] for name in names], measures=shown.column_names)
    said = [f"{'highest' if db.maximised(o) else 'lowest'} {units.label(db.column_of(o))}" for o in objectives]
    same = [f"{name} = {tables.fact(name, value)}" for name, value in alike.items()]
    tables.say("; ".join([f"front: {', '.join(said)}", *([f"by {', '.join(by)}"] if by else []), *([f"in all of them {', '.join(same)}"] if same else [])]))
    for line in run.unfused(f"{found['machine'][0]}.{found['schedule'][0]}") if len(found) else ():
        tables.say(f"machine {found['machine'][0]}: {line}")
    return 0


def _sql(given: argparse.Namespace) -> int:
    run = _open(given)
    if given.statement:
        return _print_result(run.sql(given.statement).table, given)
    views = run.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' ORDER BY 1").table[0].to_pylist()
    print(f"views: {', '.join(views)}; an empty line ends")
    while statement := tables.ask("dse> "):
        try:
            _print_result(run.sql(statement).table, given)
        except ValueError as fault:
            print(tables.safe(str(fault)))
    return 0


def _print_result(found: pa.Table, given: argparse.Namespace, keep: Sequence[str] = ()) -> int:
    from dse.frontend import api

    if given.format == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
    else:
        rows = list(zip(*(_values(found, at) for at in range(found.num_columns)), strict=True))
        tables.print_rows(found.column_names, rows, given.format, given.csv_safe, keep, api.Answer(found).measures())
    return 0


def _values(found: pa.Table, at: int) -> list[object]:
    """Of a column; Python has no dates beyond the year 9999, nor structs with one name twice."""
    try:
        return list(found.column(at).to_pylist())
    except (ValueError, OverflowError, TypeError, ArithmeticError) as fault:
        raise ValueError(f"column {found.column_names[at]} holds what cannot be shown ({' '.join(str(fault).split())[:200]}); cast it: ::VARCHAR") from None


def _show(given: argparse.Namespace) -> int:
    from dse.explain import values
    from dse.frontend import api

    run = _open(given)
    point = run.show(given.point, given.schedule)
    solved = [point.tried] if point.tried else point.solved
    around = run.neighbours(point.machine) if given.neighbours else None
    if given.format == "json":
        documents = {one.workload.name: values.document(one.arch, one.workload, one.found) for one in solved if not isinstance(one.found, Infeasible)}
        tables.print_json({**point.row, "schedule": point.schedule, "workloads": documents} | ({"neighbours": list(around)} if around else {}))
    elif given.format == "yaml":
        own = [values.mappings(one.workload, one.found, one.plan) for one in solved if not isinstance(one.found, Infeasible)]
        print(yaml.safe_dump_all(own, sort_keys=False), end="")
    elif given.format == "schedule":
        if len(solved) > 1:
            raise ValueError(f"--format schedule: {given.dir} has {len(solved)} workloads, a schedule is of one; --format yaml prints the mappings of all")
        print(*(values.nest(one.workload, one.found, one.plan) for one in solved if not isinstance(one.found, Infeasible)))
    elif given.format == "directives":
        print(*(values.directives(one.workload, one.found) for one in solved if not isinstance(one.found, Infeasible)), sep="\n")
    else:
        tables.print_nests(point.text(given.einsum, tables.width()))
        if around:
            said = around.table if set(around.table["status"].to_pylist()) != {"ok"} else around.table.drop_columns(["status"])
            heads = [units.label(name.removesuffix("_change")) for name in said.column_names]
            tables.print_table(heads, api.Answer(said).rows(), "one-at-a-time sensitivity (machines of this run, first schedule)",
                               measures=said.column_names)
            if "not solved" in around.table["status"].to_pylist():
                tables.say(f"not solved: {run.beyond()}")
    return 0


def _map(given: argparse.Namespace) -> int:
    from dse.frontend import api, progress
    from dse.study import read

    sets = read.assignments(given.set)
    name = f"{given.workload} on {given.machine}"
    if given.front:
        beside = {"--objective": given.objective, "--layout": given.layout, "--schedule": given.schedule,
                     f"--format {given.format}": given.format not in ("text", "json")}
        if wrong := [name for name, value in beside.items() if value]:
            raise ValueError(f"{wrong[0]} beside --front: it is a table by energy, latency and capacity used, as text or json; leave one of both out")
        return _front(given, progress.waited(name, lambda _: api.front(given.workload, given.machine, einsum=given.einsum or "", **sets)))
    found = progress.waited(name, lambda steps: api.map(given.workload, given.machine, objective=given.objective or "", layouts=given.layout,
                                                             schedule=given.schedule, tell=steps.tell, **sets))
    _warn(found.workload)
    return _print_mapped(found, given)


def _front(given: argparse.Namespace, found: Any) -> int:
    from dse.mapping.searched import claim, space_words

    if given.format == "json":
        tables.print_json(list(found))
        return 0
    table = found.table.drop_columns(["nest", "certificate"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    tables.print_table([*map(units.label, table.column_names)], rows, f"non-dominated mappings: {claim(found[0]['certificate'])} (nests: --format json)",
                       measures=table.column_names)
    for name, words in (space_words(found[0]["certificate"]) or {}).items():
        tables.say(f"{name.replace('_', ' ')}: {', '.join(words)}")
    return 0


def _print_mapped(found: Any, given: argparse.Namespace) -> int:
    from dse.explain import values

    tables.numbered(found.workload, given.einsum)
    if isinstance(found.found, Infeasible):
        tables.print_json(found.totals) if given.format == "json" else print(found.text(), end="")
        return 1
    if given.format == "yaml":
        print(
            values.nest(found.workload, found.found)
            if found.found.schedule
            else yaml.safe_dump(
                values.mappings(found.workload, found.found, found.plan), sort_keys=False
            ).rstrip()
        )
    elif given.format == "schedule":
        print(values.nest(found.workload, found.found, found.plan))
    elif given.format == "directives":
        print(values.directives(found.workload, found.found))
    elif given.format == "json":
        tables.print_json(values.document(found.arch, found.workload, found.found))
    else:
        tables.print_nests(found.text(given.einsum, tables.width()))
    return 0


def _residency(given: argparse.Namespace) -> int:
    from dse.frontend import api, progress
    from dse.study import read

    sets = read.assignments(given.set)
    found = progress.waited(f"{given.workload} on {given.machine}", lambda _: api.residency(given.workload, given.machine, **sets))
    _warn(found.workload)
    tables.print_json(found.document()) if given.format == "json" else print(found.text(tables.width()), end="")
    return 0


def _plot(given: argparse.Namespace) -> int:
    """RUN KIND, or WORKLOAD MACHINE KIND."""
    from dse.frontend import api, progress
    from dse.study import read

    *of, kind = given.words
    if len(of) == 1:
        picture = api.open(of[0]).plot(kind, given.point)
    elif len(of) == 2:
        sets = read.assignments(given.set)

        def drawn(steps: Any) -> Any:
            if kind == "layout":
                return api.layout(of[0], of[1], given.layout, **sets)
            if kind == "residency" and not given.schedule:
                return api.residency(*of, **sets).plot()
            return api.map(*of, schedule=given.schedule, tell=steps.tell, **sets).plot(kind, given.einsum, steps.tell)
        picture = progress.waited(f"{kind} of {of[0]} on {of[1]}", drawn)
    else:
        raise ValueError(f"{' '.join(given.words)}: give RUN KIND or WORKLOAD MACHINE KIND; dse plot --help lists the kinds")
    out = given.output or f"{kind}.png"
    picture.save(out)
    tables.say(f"{out}: {kind} of {' on '.join(of)}")
    return 0


def _report(given: argparse.Namespace) -> int:
    from dse.frontend import progress

    run = _open(given)
    out = Path(given.output or f"{run.study.name}.html")
    progress.waited(f"report of {given.dir}", lambda _: run.report(out))
    tables.say(f"{out}: {out.stat().st_size / 1e6:.1f} MB, needs no network")
    return 0


def _simulate(given: argparse.Namespace) -> int:
    from dse.frontend import api
    from dse.mapping import directives
    from dse.sim.directives import directed
    from dse.sim.schedule.graph import evaluate
    from dse.study import read
    from hw import machine, space
    from workloads import catalog

    sets = read.assignments(given.set)
    fuse = bool(sets.pop("solver.fuse_elementwise", True))
    arch = machine.arch(space.override(machine.load(given.machine), sets))
    path, asked = Path(given.mapping), catalog.load(given.workload, fuse_elementwise=fuse)
    _warn(asked)
    if (unnested := directed.priced(path, asked, arch)) is not None:
        return _print_mapped(api.Mapped(arch, asked, unnested), given)
    workload, given_schedule = directives.load(path, asked, arch)
    try:
        found = evaluate(arch, workload, given_schedule)
    except ValueError as fault:
        raise ValueError("\n".join(f"{given.mapping}: {line}" for line in str(fault).splitlines())) from None
    return _print_mapped(api.Mapped(arch, workload, found, plan=given_schedule), given)


def _check(given: argparse.Namespace) -> int:
    from dse.frontend import check, keys

    if given.schema:
        tables.print_json(keys.schema(given.schema))
    elif not given.files:
        raise ValueError("dse check: which files? give FILE..., or --schema machine, study or workload")
    faults, good = [], []
    for text in given.files:
        try:
            line, layers = check.file(text)
            good.append({"file": text, "is": line, "layers": [layer._asdict() for layer in layers]})
            if given.format == "text":
                tables.say(f"{text}: {line}")
                if layers:
                    tables.print_table(layers[0]._fields, layers)
        except ValueError as fault:
            faults.append(str(fault))
    if given.format == "json":
        tables.print_json({"files": good, "faults": [line for text in faults for line in text.splitlines()]})
    if faults:
        raise ValueError("\n".join(faults))
    return 0


def _list(given: argparse.Namespace) -> int:
    import pyarrow as pa

    from dse.frontend import check

    header, rows = check.listing(given.what)
    if given.format == "table":
        heads = [*map(units.label, header)]
        tables.print_rows(heads, rows, "table", keep=(*heads[:2], "given", "what", "meaning"), measures=header)
        return 0
    found = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list(header))
    return _print_result(found, given)


def _new(given: argparse.Namespace) -> int:
    from dse.frontend import templates

    text = templates.TEXTS[given.what]
    if given.file is None:
        print(text, end="")
        return 0
    path = Path(given.file)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as fault:
        raise ValueError(f"{path}: cannot be written ({fault.strerror}); give another name") from None
    tables.say(f"{path}: a {given.what} to start from; next: dse check {path}" + (f", dse run {path} --dry-run" if given.what == "study" else ""))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run, "resume": _resume, "status": _status, "pareto": _pareto, "sql": _sql, "show": _show,
    "map": _map, "plot": _plot, "report": _report, "residency": _residency, "simulate": _simulate, "check": _check, "list": _list, "new": _new}
