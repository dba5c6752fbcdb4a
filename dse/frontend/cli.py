"""The command `dse`: parses arguments, calls the packages, prints. Exit codes: `arguments.EXIT_CODES`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

# a user's folder named hw or cluster must not be imported instead
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dse.explain import units
from dse.frontend import arguments, tables

if TYPE_CHECKING:  # each command imports what it needs, so that start-up is short
    import pyarrow as pa

    from cluster.objects import RunFolder
    from dse.frontend import answers
    from dse.study.study import Study
    from workloads.graph import Workload
    from workloads.sparsity import TileRow


MAX_LINES = 40  # lines of faults that are shown
WATCH_S = 1.0  # seconds between updates of dse status --watch


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (None: that of the process). Returns the exit code (`dse --help` lists them)."""
    args = arguments.parse(argv)
    # run and resume go on when stdout's pipe is closed (| head); the other commands end
    if args.command not in ("run", "resume"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    before = threading.enumerate()
    code = _exit_code(args)
    still_running = [
        thread
        for thread in threading.enumerate()
        if thread.name in ("dse sql", "dse probe") and thread not in before
    ]
    # a statement that ignores interrupts, or the search of a dry run: leave without waiting for its thread
    if still_running:
        sys.stdout.flush()
        os._exit(code)
    return code


def _exit_code(args: argparse.Namespace) -> int:
    try:
        return COMMANDS[args.command](args)
    except ValueError as fault:
        if os.environ.get("DSE_TRACEBACK"):
            raise
        lines = list(dict.fromkeys(map(_plain, _in_urls(str(fault), args).splitlines())))
        print(
            "\n".join(
                [
                    *lines[:MAX_LINES],
                    *([f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []),
                ]
            ),
            file=sys.stderr,
        )
        return int(getattr(fault, "exit_code", 2))
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as fault:
        from analysis.db import is_ctrl_c

        if not is_ctrl_c(fault):
            raise
        return _interrupted()


def _in_urls(text: str, args: argparse.Namespace) -> str:
    """Returns a message with the URLs that the user gave, in place of the copies of their folders."""
    for given in (getattr(args, "dir", ""), getattr(args, "out", ""), *getattr(args, "words", ())):
        if given and "://" in given:
            from cluster import objects

            with suppress(ValueError):
                text = objects.in_urls(text, given)
    return text


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _plain(line: str) -> str:
    """Returns a line without control characters, cut to a readable length; it may quote a file of unknown
    origin.
    """
    shown = tables.safe(line)
    return shown if len(shown) <= 1000 else f"{shown[:1000]} ..."


def _run(args: argparse.Namespace) -> int:
    from dse.frontend import check, plausible
    from dse.study import study as studies

    if check.is_machine(args.study):
        raise ValueError(
            f"{args.study}: is a machine, and a run is of a study, which names one (machine: {args.study}); "
            "begin with dse new study mine.yaml"
        )
    study = studies.load(args.study, args.set)
    _warn(*study.loaded_workloads)
    rules = plausible.rules_of_nothing(study.space.template, study.loaded_workloads)
    for line in (*plausible.space_lines(study.space), *rules):
        print(_plain(line), file=sys.stderr)
    if args.dry_run:
        print(f"{study.name}: {study.space.size} machines in the space; solving a few", file=sys.stderr)
        from cluster import driver
        from dse.frontend import progress

        _print_facts(
            progress.run_with_progress(
                f"{study.name}: probing", lambda _: driver.dry_run(study, args.workers, _rows_in(args))
            ),
            args.format,
        )
        return 0
    from cluster import objects

    with objects.run_folder(args.out or f"runs/{study.name}") as place:
        return _drive(study, place, args)


def _rows_in(args: argparse.Namespace) -> int:
    """Returns how many machines the folder of a run that is foreseen has; 0 if it is none, or damaged."""
    from dse.frontend import check

    with suppress(ValueError):
        return int(check.status(Path(args.out), skip_damaged=True)["done"]) if args.out else 0
    return 0


def _warn(*workloads: Workload) -> None:
    from workloads.graph import warnings

    for line in dict.fromkeys(line for workload in workloads for line in warnings(workload)):
        print(_plain(f"warning: {line}"), file=sys.stderr)


def _resume(args: argparse.Namespace) -> int:
    from cluster import objects, store
    from dse.run import folder
    from dse.study import study as studies

    if folder.is_url(args.dir):
        objects.raise_if_no_run(args.dir)
    with objects.run_folder(args.dir) as place:
        mended = store.mend(place.path)
        before = (folder.status(place.path, "") or {}).get("address")
        if before and not args.address and args.workers != 0:
            line = f"the run was on the Ray cluster at {before}, this starts one of its own"
            print(_plain(f"{line}; --address {before} joins that one"), file=sys.stderr)
        return _drive(studies.load(place.path / "study.yaml", within=place.path), place, args, mended)


def _drive(study: Study, place: RunFolder, args: argparse.Namespace, mended: Sequence[str] = ()) -> int:
    from cluster import driver
    from dse.frontend import progress

    with progress.RunProgress(study.name, partial(_in_urls, args=args)) as shown:
        outcome = driver.run(
            study, place.path, args.workers, args.address, shown.show, mended, args.metrics, place.publisher
        )
    out = place.shown
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if args.format == "json":
        tables.print_json({"dir": out, "solved": outcome.solved, **asdict(outcome.status)})
    else:
        tables.print_end(out, outcome.status, outcome.solved, args.address)
        _print_hints(place.path, outcome.status)
    return int(outcome.exit_code)


def _print_hints(out: Path, status: Any) -> None:
    """Prints what fusion may save on the best machine of a front, which axes end where the best lies, and
    what is proven of the front by bounds. Errors are ignored: these lines are asked for again at will.
    """
    from dse.frontend import runs

    with suppress(ValueError):
        run = runs.open(out)
        for line in run.fusion_hints() if status.front else ():
            tables.print_line(f"best machine: {line}")
        for line in run.axis_hints() if status.front and status.state == "finished" else ():
            tables.print_line(line)
        if run.study.search.method == "bounds" and status.front:
            tables.print_line(run.certificate())


class _NoPandas:
    """An entry of sys.meta_path that does not find pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def _leave_pandas_out() -> None:
    """PyArrow looks for pandas once, at its first array from Python values, which costs 0.3 s. From now on it
    takes no pandas objects, of which a command has none.
    """
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, blocked := _NoPandas())
    pa.array([None])
    sys.meta_path.remove(blocked)


def _open(args: argparse.Namespace) -> Any:
    from dse.frontend import check, runs

    _leave_pandas_out()
    for line in check.left_out(Path(args.dir)) if args.skip_damaged else ():
        print(_plain(_in_urls(line, args)), file=sys.stderr)
    return runs.open(
        args.dir, skip_damaged=args.skip_damaged, memory=args.memory, seconds=getattr(args, "timeout", 60.0)
    )


# of the status, what is printed first, and all that --watch prints
STATUS_FIRST = (
    "study",
    "state",
    "last_sign_of_life_s",
    "reason",
    "waiting",
    "done",
    "planned",
    "left_s",
    "rate",
    "ok",
    "error",
    "infeasible",
    "pruned",
    "front",
    "worst_gap",
    "worker_time_s",
    "utilization",
    "workers_live",
    "workers_busy",
    "solving",
    "nodes",
    "nodes_lost",
    "retries",
    "damaged",
    "notes",
)
WIDE_KEYS = 140  # columns of a terminal from which on keys have a column each for values, unit and default
KEYS_IN_PIPES = 110  # columns of `dse list keys` in a pipe, whose cells are sentences
MAX_PAIRS = 3  # of rows of a front that are not separated, which `dse pareto` names
MAX_VALUES = 32  # of a parameter, which `dse sql` lists one by one
WATCHED_NOTES = 3  # newest notes that --watch prints


def _status(args: argparse.Namespace) -> int:
    from dse.frontend import check
    from dse.run import folder

    out = check.local(args.dir)
    if not check.is_intact_study(out):
        from dse.frontend import runs

        try:
            runs.study_of(out)  # raises if the folder or its study is damaged
        except folder.OtherVersion as fault:  # what status.json says was counted then, and holds
            print(_plain(_in_urls(str(fault), args)), file=sys.stderr)
    while True:
        facts = check.status(check.local(args.dir), args.skip_damaged)
        if folder.is_url(args.dir) and facts["state"] == "running":
            from cluster import objects

            age_s = min(facts["last_sign_of_life_s"], objects.last_claim_s(args.dir))
            facts["last_sign_of_life_s"] = age_s
        if args.watch and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")  # a clear screen
        keys = STATUS_FIRST if args.watch and args.format == "text" else (*STATUS_FIRST, *facts)
        if args.watch and facts.get("notes"):
            facts["notes"] = facts["notes"][-WATCHED_NOTES:]
        is_json = args.format == "json"
        if not is_json:
            facts["solving"] = tables.solving_texts(facts.get("solving"))
            if "hypervolume" in facts:
                facts["hypervolume"] = (
                    f"{units.number(facts['hypervolume'])} (box: this run's feasible points)"
                )
        _print_facts(
            {key: facts[key] for key in keys if key in facts and (is_json or facts[key] != "")}, args.format
        )
        if not args.watch or facts["state"] != "running":
            return 0
        sys.stdout.flush()
        time.sleep(WATCH_S)


def _stop(args: argparse.Namespace) -> int:
    from cluster import stopping
    from dse.frontend import progress
    from dse.run import folder

    out = args.dir

    def stopped(steps: progress.Steps) -> Path:
        def waiting() -> None:
            if not args.now and not folder.is_url(out):  # the folder of a URL is not here
                steps.name = f"{out}: {progress.stopping_text(folder.status(Path(out), '') or {})}"

        ended: Path = stopping.stop(out, args.now, waiting)
        return ended

    cost = "" if args.now else progress.NOW_COSTS
    ended = progress.run_with_progress(f"{out}: stopping", stopped, cost)
    found = folder.status(ended, "") or {}
    state, reason = str(found.get("state")), str(found.get("reason"))
    ending = reason if reason.startswith(state) else f"{state}, {reason}"
    tables.print_line(f"{out}: {ending}; {found.get('done')} machines in all; next: dse resume {out}")
    return 0


def _cache(args: argparse.Namespace) -> int:
    from dse.frontend import check
    from dse.run import cache
    from workloads.plugin import cache_root

    if not args.prune:
        if args.all or args.older is not None:
            raise ValueError("dse cache: --all and --older say what --prune removes; give --prune too")
        rows = check.cache_rows()
        if args.format == "json":
            tables.print_json({"folder": str(cache_root()), "answers": rows})
            return 0
        head = ("kind", "version", "answers", "size_bytes", "newest_s", "oldest_s")
        cells = [[tables.fact(key, row[key]) for key in head] for row in rows]
        names = ("kind", "version", "answers", "size", "newest", "oldest")
        tables.print_table(names, cells, f"{cache_root()}: this dse is version {cache.version()}")
        return 0
    older_s = None if args.older is None else 86_400 * args.older
    count, size_bytes = cache.prune(older_s, of_others=older_s is None and not args.all)
    if args.all or args.older is not None:
        from cluster import objects

        copies, copied_bytes = objects.prune_copies(older_s)
        count, size_bytes = count + copies, size_bytes + copied_bytes
    if args.format == "json":
        tables.print_json({"folder": str(cache_root()), "removed": count, "removed_bytes": size_bytes})
    else:
        tables.print_line(f"{cache_root()}: {count} entries removed, {tables.fact('size_bytes', size_bytes)}")
    return 0


def _print_facts(facts: dict[str, Any], form: str) -> None:
    tables.print_json(facts) if form == "json" else print(tables.facts(facts, width=tables.facts_width()))


def _pareto(args: argparse.Namespace) -> int:
    from analysis import db
    from dse.frontend import answers
    from dse.study import study as studies

    run = _open(args)
    objectives = args.objectives.split(",") if args.objectives else run.objectives()
    by = list(filter(None, args.by.split(",")))
    parameters = [*studies.columns(run.study, "machines")]
    # of all others, some take seconds: MACs are counted in the workloads
    shown = [*parameters, "gap_to_bound", "optimality_gap"] if args.format == "table" else None
    front = run.front(objectives, args.where, by, args.distinct, args.epsilon, args.knee, shown).table
    if args.format != "table":
        _warn_unfinished(run)
        _print_result(front, args)
        return 0
    columns = [*by, *map(db.column_of, objectives)]
    with_ties = args.distinct or (args.knee and max(front["tied_designs"].to_pylist(), default=0) > 1)
    names, others, same_in_all = _front_columns(front, columns, parameters, with_ties)
    shown_table = front.select(list(dict.fromkeys([*names, *others])))
    heads = {name: name if name in parameters else units.label(name) for name in shown_table.column_names}
    rows = list(zip(*(_values(shown_table, at) for at in range(shown_table.num_columns)), strict=True))
    tables.print_rows(
        [*heads.values()],
        rows,
        "table",
        keep=[heads[name] for name in names],
        unit_keys=shown_table.column_names,
        max_lines=tables.screen_lines(args.all),
    )
    directions = [
        f"{'highest' if db.maximised(o) else 'lowest'} {units.label(db.column_of(o))}" for o in objectives
    ]
    tables.print_line(
        "; ".join(
            [
                f"front: {', '.join(directions)}",
                *([f"by {', '.join(by)}"] if by else []),
                *_same_line(same_in_all),
            ]
        )
    )
    if args.knee and not by and len(front) == 1:
        tables.print_line(_knee_line(run, front, objectives, args.where))
    is_whole = not (args.objectives or args.where or by or args.knee or args.epsilon is not None)
    of_whole = [run.unfinished(), *([run.certificate()] if is_whole else [])]
    if not (args.where or by):  # the best points of the run, whichever of the front are shown
        of_whole += run.axis_hints(objectives)
    close = _close_line(front, by, [*map(db.column_of, objectives)]) or (run.gap_note() if len(front) else "")
    notes = [line for line in (close, run.one_mapping_note(objectives) if len(front) else "") if line]
    if notes and not args.why:  # what each says first, in one line
        notes = [f"{'; '.join(line.partition(': ')[0] for line in notes)} (--why)"]
    for line in filter(None, (answers.Answer(front).note, *notes, *of_whole)):
        tables.print_line(line)
    for line in run.fusion_hints(f"{front['machine'][0]}.{front['schedule'][0]}") if len(front) else ():
        tables.print_line(f"machine {front['machine'][0]}: {line}")
    return 0


def _warn_unfinished(*runs: Any) -> None:
    """Says on stderr of which runs rows are missing because they have not finished."""
    for run in runs:
        if line := run.unfinished():
            print(_plain(f"{run.path}: {line}" if len(runs) > 1 else line), file=sys.stderr)


def _front_columns(
    front: pa.Table, columns: Sequence[str], parameters: Sequence[str], with_ties: bool
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Returns of a front, first its machine, `columns` and the parameters that differ in it, which stay where
    the screen is narrow; then the columns behind; and the parameters that are the same in all its rows.
    """
    schedule = ["schedule"] if any(front["schedule"].to_pylist()) else []
    names = ["machine", *columns]
    same_in_all = {
        name: front[name][0].as_py()
        for name in (*schedule, *parameters)
        if len(front) > 1 and name not in names and len(front[name].unique()) == 1
    }
    names = [*dict.fromkeys([*names, *(name for name in parameters if name not in same_in_all)])]
    behind = [*(name for name in schedule if name not in same_in_all), *["tied_designs"] * with_ties]
    return names, [*behind, "gap_to_bound"], same_in_all


def _close_line(front: pa.Table, by: Sequence[str], objectives: Sequence[str]) -> str:
    """Returns which pairs of a front's rows may change places within their gaps: in every objective in which
    the two differ, the worse one is worse by less than the gap of its cost; "" if none may.
    """
    import numpy as np

    values = np.column_stack([front[name].to_numpy() for name in objectives]).astype(float)
    # no mapping changes the area
    has_gap = np.array([name != "area_mm2" for name in objectives])
    gaps = np.nan_to_num(front["optimality_gap"].to_numpy().astype(float))
    keys = [*zip(*(front[name].to_pylist() for name in by), strict=True)] if by else [()] * len(front)
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    groups = np.array([number[key] for key in keys])
    pairs: list[str] = []
    names = [
        f"{machine}.{schedule}" if schedule else f"{machine}"
        for machine, schedule in zip(front["machine"].to_pylist(), front["schedule"].to_pylist(), strict=True)
    ]
    for i in range(len(front) - 1):
        one, others = values[i], values[i + 1 :]
        larger_gap = np.maximum(gaps[i], gaps[i + 1 :])[:, None]
        is_same = others == one
        is_near = np.abs(others - one) < larger_gap * np.minimum(np.abs(others), np.abs(one))
        is_close = (is_same | (is_near & has_gap)).all(axis=1) & ~is_same.all(axis=1)
        near = np.flatnonzero(is_close & (groups[i + 1 :] == groups[i]))
        pairs += [f"{names[i]} and {names[i + 1 + k]}" for k in near]
    more = len(pairs) - MAX_PAIRS
    shown = ", ".join(pairs[:MAX_PAIRS]) + f" and {units.counted(more, 'more pair')}" * (more > 0)
    return (
        f"{shown} are not separated: two differ by less than their optimality gaps in every objective in "
        "which they differ; a smaller solver.gap or sharing_gap tells which is better"
        if pairs
        else ""
    )


def _knee_line(run: Any, front: pa.Table, objectives: Sequence[str], where: str) -> str:
    """Returns the rule by which the one row of `front` is the knee, and which other points have its sum."""
    import numpy as np

    from analysis import db

    names = [*map(db.column_of, objectives)]
    whole = run.front(objectives, where, distinct=True, columns=()).table
    signs = [-1.0 if db.maximised(one) else 1.0 for one in objectives]
    values = np.column_stack([whole[name].to_numpy().astype(float) for name in names]) * signs
    own = front["machine"][0].as_py()
    tied = [whole["machine"][int(i)].as_py() for i in db.knees(values)]
    others = ", ".join(str(one) for one in tied if one != own)
    rule = "knee: least sum of objectives, each from 0 (best on the front) to 1 (worst)"
    if not others:
        return rule
    return (
        f"{rule}; {others} {'have' if len(tied) > 2 else 'has'} the same sum: of such the one whose worst "
        "objective is best, then the one that is best in the first objective"
    )


def _same_line(same_in_all: Mapping[str, Any]) -> list[str]:
    texts = [f"{name} = {tables.fact(name, value)}" for name, value in same_in_all.items()]
    return [f"in all of them {', '.join(texts)}"] if texts else []


def _macro_table(
    found: pa.Table, statement: str, parameters: Sequence[str], shows_all: str = "--all"
) -> tuple[pa.Table, str]:
    """Returns what is shown of the answer of `FROM macro(...)`, and a line about the rest: of a front the
    columns of `dse pareto` (and which run), of `sensitivity` ranges of values where they are many, of
    `hypervolume` the reference with its units.
    shows_all: what the user says to see the answer itself.
    """
    from analysis import db

    name, given = db.call_alone(statement)
    if name == "sensitivity" and len(found) > MAX_VALUES:
        return _in_ranges(found, given["parameter"], shows_all)
    if name == "hypervolume" and given["objectives"]:
        return _with_units(found, [*map(db.column_of, given["objectives"])]), ""
    of_runs = [name for name in ("run",) if name in found.column_names]
    asked = [*of_runs, *(given.get("grp") or []), *map(db.column_of, given.get("objectives") or [])]
    needed = {"machine", "schedule", "gap_to_bound", *parameters, *asked}
    if not given.get("objectives") or not needed <= {*found.column_names}:
        return found, ""
    names, others, same_in_all = _front_columns(found, asked, parameters, with_ties=False)
    if "feasible" in found.column_names and not all(found["feasible"].to_pylist()):
        others.append("feasible")
    shown = found.select(list(dict.fromkeys([*names, *others])))
    rest = f"{found.num_columns - shown.num_columns} more columns: SELECT * FROM {name}(...), or {shows_all}"
    return shown, "; ".join([*_same_line(same_in_all), rest])


def _with_units(found: pa.Table, objectives: Sequence[str]) -> pa.Table:
    """Returns the answer of the macro `hypervolume` with the reference as text: a value of each objective."""
    import pyarrow as pa

    texts = [
        None
        if values is None
        else ", ".join(units.quantity(name, value) for name, value in zip(objectives, values, strict=True))
        for values in found["reference"].to_pylist()
    ]
    at = found.column_names.index("reference")
    return found.set_column(at, "reference", pa.array(texts, pa.string()))


def _in_ranges(found: pa.Table, parameter: str, shows_all: str) -> tuple[pa.Table, str]:
    """Returns the answer of the macro `sensitivity` with its values in ranges of about as many rows each, as
    in the picture, and a line that says so; the answer itself where values are texts.
    """
    import numpy as np
    import pyarrow as pa

    from dse.explain import figures

    values = found["value"].to_pylist()
    rows, paired = (found[name].to_numpy() for name in ("rows", "paired"))
    if not all(isinstance(value, int | float) for value in values):
        return found, ""
    ranges, own = figures.binned(parameter, np.repeat(np.array(values, float), rows).tolist())
    own = own[np.cumsum(rows) - 1]  # the range of each value
    logs = np.log(np.array(found["times_the_mean"].to_pylist(), float))
    counts, pairs = (np.bincount(own, one, len(ranges)).astype(int) for one in (rows, paired))
    sums = np.bincount(own, np.where(paired > 0, paired * logs, 0.0), len(ranges))
    means = [float(np.exp(total / n)) if n else None for total, n in zip(sums, pairs, strict=True)]
    columns = {"value": ranges, "rows": counts, "paired": pairs, "times_the_mean": means}
    ranged = pa.table(columns).replace_schema_metadata(found.schema.metadata)
    return ranged, f"{len(values)} values in {len(ranges)} ranges; {shows_all} shows each value"


def _sql(args: argparse.Namespace) -> int:
    from dse.study import study as studies

    run = _open(args)
    if args.others:
        from dse.frontend import runs

        limits = {"skip_damaged": args.skip_damaged, "memory": args.memory, "seconds": args.timeout}
        run = runs.open_all([args.dir, *args.others], **limits)
    from dse.frontend import prompt

    all_runs = [*run.runs.values()] if args.others else [run]
    first = all_runs[0]
    if args.statement and args.statement.lstrip().startswith("."):
        prompt.command(args.statement.strip().rstrip(";"), run.sql, first.study)
        return 0
    _warn_unfinished(*all_runs)
    # where the screen is narrow these stay
    objectives = [o.column for o in first.study.objectives]
    parameters = [*studies.columns(first.study, "machines")]
    keep = ["run", "machine", *objectives, *parameters]
    if args.statement:
        found, line = run.sql(args.statement).table, ""
        if args.format == "table" and not args.all:
            found, line = _macro_table(found, args.statement, parameters)
        _print_result(found, args, keep, tables.screen_lines(args.all))
        if line:
            tables.print_line(line)
        return 0

    def show(answer: answers.Answer, statement: str, rows: int | None) -> None:
        found, line = answer.table, ""
        if args.format == "table" and rows != 0:
            found, line = _macro_table(found, statement, parameters, ".rows 0")
        _print_prompt_answer(found, args, keep, rows)
        if line:
            tables.print_line(line)

    return prompt.run(run.sql, show, first.study)


def _print_prompt_answer(
    found: pa.Table, args: argparse.Namespace, keep: Sequence[str], rows: int | None
) -> None:
    """Prints an answer at the prompt. rows: how many rows of a table are printed at most; 0: all; None: as
    many as the screen holds, ROWS where there is none. keep: as of tables.table.
    """
    from dse.frontend import prompt

    max_rows = prompt.ROWS if rows is None else rows
    shown = found.slice(0, max_rows) if args.format == "table" and max_rows else found
    max_lines = tables.screen_lines() if rows is None else None
    _print_result(shown, args, keep, max_lines, found.num_rows, ".rows 0")


def _print_result(
    found: pa.Table,
    args: argparse.Namespace,
    keep: Sequence[str] = (),
    max_lines: int | None = None,
    row_count: int | None = None,
    shows_all: str = "--all or --format csv",
) -> None:
    """Prints rows; the arguments from `keep` on are those of tables.print_rows."""
    from dse.frontend import answers

    note = answers.Answer(found).note
    if note and args.format != "table":
        print(tables.safe(note), file=sys.stderr)
    if args.format == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
        return
    rows: list[Sequence[Any]] = list(
        zip(*(_values(found, at) for at in range(found.num_columns)), strict=True)
    )
    units_of = answers.Answer(found).unit_keys()
    names = found.column_names
    spaces: list[str] = []
    if args.format == "table" and "certificate" in names:
        rows, spaces = _without_spaces(rows, names.index("certificate"))
    left_out = tables.print_rows(
        names, rows, args.format, args.csv_safe, keep, units_of, max_lines, row_count, shows_all
    )
    for words in spaces if "certificate" not in left_out else ():
        tables.print_line(words)
    if note and args.format == "table":
        tables.print_line(note)


def _without_spaces(rows: Sequence[Sequence[Any]], at: int) -> tuple[list[Sequence[Any]], list[str]]:
    """Returns the rows with only the claims of their certificates, which stand at this place, and what was
    searched, once.
    """
    from dse.mapping.searched import claim

    claims = [claim(row[at]) if isinstance(row[at], str) else row[at] for row in rows]
    spaces = {
        row[at][len(own) :].removeprefix("; "): None for row, own in zip(rows, claims, strict=True) if own
    }
    return [[*row[:at], own, *row[at + 1 :]] for row, own in zip(rows, claims, strict=True)], [
        words for words in spaces if words
    ]


def _values(found: pa.Table, at: int) -> list[object]:
    """Returns the cells of a column. Raises ValueError for values that Python cannot represent: dates after
    the year 9999, structs with two fields of one name.
    """
    try:
        return list(found.column(at).to_pylist())
    except (ValueError, OverflowError, TypeError, ArithmeticError) as fault:
        raise ValueError(
            f"column {found.column_names[at]} holds what cannot be shown "
            f"({' '.join(str(fault).split())[:200]}); cast it: ::VARCHAR"
        ) from None


def _show(args: argparse.Namespace) -> int:
    from dse.explain import values
    from dse.frontend import answers, plausible
    from dse.mapping.nest import Infeasible

    run = _open(args)
    point = run.show(args.point, args.schedule)
    for line in plausible.lines_of_machine(run.study.space, point.machine):
        print(_plain(line), file=sys.stderr)
    if args.point.startswith("best"):
        _warn_unfinished(run)
    solved = [point.given_schedule] if point.given_schedule else point.with_einsum(args.einsum)
    if args.export:
        return _write_point(args, run, point)
    neighbours = run.neighbours(point.machine) if args.neighbours else None
    if args.format == "json":
        documents = {
            one.workload.name: values.document(one.arch, one.workload, one.solution, one.plan, args.einsum)
            for one in solved
            if not isinstance(one.solution, Infeasible)
        }
        tables.print_json(
            {**point.row, "schedule": point.schedule, "workloads": documents}
            | ({"neighbours": list(neighbours)} if neighbours else {})
        )
    elif args.format == "yaml":
        mappings = [
            values.mappings(one.workload, one.solution, one.plan)
            for one in solved
            if not isinstance(one.solution, Infeasible)
        ]
        print(yaml.safe_dump_all(mappings, sort_keys=False), end="")
    elif args.format == "schedule":
        if len(solved) > 1:
            raise ValueError(
                f"--format schedule: {args.dir} has {len(solved)} workloads, a schedule is of one; "
                "--format yaml prints the mappings of all"
            )
        print(
            *(
                values.nest(one.workload, one.solution, one.plan)
                for one in solved
                if not isinstance(one.solution, Infeasible)
            )
        )
    elif args.format in arguments.PEERS:
        for one in solved:
            if not isinstance(one.solution, Infeasible):
                print(_peer_text(args, one.arch, one.workload, one.solution), end="")
    elif args.format == "directives":
        print(
            *(
                values.directives(one.workload, one.solution, one.plan)
                for one in solved
                if not isinstance(one.solution, Infeasible)
            ),
            sep="\n",
        )
    else:
        tables.print_nests(point.text(args.einsum, tables.terminal_width(), args.why))
        if neighbours:
            shown = (
                neighbours.table
                if set(neighbours.table["status"].to_pylist()) != {"ok"}
                else neighbours.table.drop_columns(["status"])
            )
            heads = [units.label(name.removesuffix("_change")) for name in shown.column_names]
            tables.print_table(
                heads,
                answers.Answer(shown).rows(),
                "one-at-a-time sensitivity (machines of this run, first schedule)",
                unit_keys=shown.column_names,
            )
            if "not solved" in neighbours.table["status"].to_pylist():
                tables.print_line(f"not solved: {run.why_unsolved()}")
    return 0


def _write_point(args: argparse.Namespace, run: Any, point: Any) -> int:
    """Runs `dse show DIR POINT --export FOLDER`."""
    from dse.explain import values
    from dse.frontend import point_files

    def other_form(one: Any) -> str:
        """Returns the mappings in the form of --format; "" where that is one of ours, which is there."""
        if args.format == "directives":
            return f"{values.directives(one.workload, one.solution, one.plan)}\n"
        in_peers = args.format in arguments.PEERS
        return _peer_text(args, one.arch, one.workload, one.solution) if in_peers else ""

    for path, says in point_files.write(run, point, Path(args.export), args.format, other_form):
        tables.print_line(f"{path}: {says}")
    return 0


def _map(args: argparse.Namespace) -> int:
    from dse.frontend import api, progress

    sets = _sets(args.set, api.map)
    name = f"{args.workload} on {args.machine}"
    if args.front:
        conflicting = {
            "--objective": args.objective,
            "--layout": args.layout,
            "--schedule": args.schedule,
            f"--format {args.format}": args.format not in ("text", "json"),
        }
        if in_conflict := [name for name, value in conflicting.items() if value]:
            raise ValueError(
                f"--front cannot be combined with {in_conflict[0]}: it prints a front over energy and "
                "latency, as text or json; leave out one of the two"
            )
        return _front(
            args,
            progress.run_with_progress(
                name, lambda _: api.front(args.workload, args.machine, einsum=args.einsum or "", **sets)
            ),
        )
    mapped = progress.run_with_progress(
        name,
        lambda shown: api.map(
            args.workload,
            args.machine,
            objective=args.objective or "",
            layouts=args.layout,
            schedule=args.schedule,
            einsum=args.einsum or "",
            progress=shown.update,
            **sets,
        ),
        shorten=_shorter(sets),
    )
    _warn(mapped.workload)
    from dse.frontend import plausible

    spec = api.machine_with(args.machine, sets)
    rules = plausible.rules_of_nothing(spec, [mapped.workload])
    for line in (*plausible.lines_not_shipped(spec, mapped.arch), *rules):
        print(_plain(line), file=sys.stderr)
    return _print_mapped(mapped, args)


def _sets(texts: Sequence[str], ask: Callable[..., Any]) -> dict[str, Any]:
    """Returns the values of --set, which are passed to `ask` by name. Raises ValueError for one that would be
    taken for another of its arguments.
    """
    from inspect import signature

    from dse.study import read
    from workloads.meant import meant

    sets = read.assignments(texts)
    if taken := [key for key in sets if key in signature(ask).parameters]:
        advice = next(iter(meant(taken[0], ())), "")
        fix = "write NODE.FIELD=VALUE (gbuf.capacity='64 KiB'), solver.KEY=VALUE or limits.seconds=S"
        raise ValueError(
            f"--set {taken[0]}: is no field of a machine; {f'did you mean {advice}?' if advice else fix}"
        )
    return sets


def _shorter(sets: Mapping[str, Any]) -> str:
    """Returns what would end a long search: `limits.seconds`, of schedules that it may end."""
    schedule = sets.get("solver.schedule", "unfused")
    may_end = schedule in ("unfused", "fused", "best") and "limits.seconds" not in sets
    return "--set limits.seconds=S ends its search, with a gap" * may_end


def _front(args: argparse.Namespace, found: Any) -> int:
    from dse.mapping.searched import claim, space_words

    if args.format == "json":
        tables.print_json(list(found))
        return 0
    is_einsum = "nest" in found.table.column_names
    table = found.table.drop_columns(["nest" if is_einsum else "schedule", "certificate"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    tables.print_table(
        [*map(units.label, table.column_names)],
        rows,
        f"non-dominated {'mappings' if is_einsum else 'schedules'}: {claim(found[0]['certificate'])} "
        f"({'nests' if is_einsum else 'their text'}: --format json)",
        unit_keys=table.column_names,
    )
    words_of = space_words(found[0]["certificate"]) or {}
    for name, words in words_of.items() if args.why else ():
        tables.print_line(f"{name.replace('_', ' ')}: {', '.join(words)}")
    if words_of and not args.why:
        tables.print_line("--why: what was searched, and what not")
    return 0


def _print_mapped(mapped: Any, args: argparse.Namespace) -> int:
    from dse.explain import values
    from dse.frontend import screens
    from dse.mapping.nest import Infeasible

    screens.einsum_indices(mapped.workload, args.einsum)
    if isinstance(mapped.solution, Infeasible):
        tables.print_json(mapped.totals) if args.format == "json" else print(mapped.text(), end="")
        return 1
    if args.format == "yaml":
        print(
            values.nest(mapped.workload, mapped.solution)
            if mapped.solution.schedule
            else yaml.safe_dump(
                values.mappings(mapped.workload, mapped.solution, mapped.plan), sort_keys=False
            ).rstrip()
        )
    elif args.format == "schedule":
        print(values.nest(mapped.workload, mapped.solution, mapped.plan))
    elif args.format == "directives":
        print(values.directives(mapped.workload, mapped.solution, mapped.plan))
    elif args.format in arguments.PEERS:
        print(_peer_text(args, mapped.arch, mapped.workload, mapped.solution), end="")
    elif args.format == "json":
        parts = (mapped.arch, mapped.workload, mapped.solution, mapped.plan)
        tables.print_json(values.document(*parts, args.einsum))
    else:
        tables.print_nests(mapped.text(args.einsum, tables.terminal_width(), args.why))
    return 0


def _peer_text(args: argparse.Namespace, arch: Any, workload: Workload, solution: Any) -> str:
    """Returns the mappings of a solution in the form of another tool. Raises ValueError for what it cannot
    express.
    """
    from dse.exchange import convert

    if solution.schedule and not solution.schedule.is_unfused():
        raise ValueError(
            f"--format {args.format}: the schedule of {workload.name} is fused, pipelined or retains "
            "tensors; take --format schedule"
        )
    nests = {one.name: one.mapping for one in solution.einsums if args.einsum in (None, one.name)}
    names = Path(args.names) if args.names else None
    return convert.written(args.format, nests, workload.einsums, arch, names)


def _convert(args: argparse.Namespace) -> int:
    from dse.exchange import convert

    if wrong := [text for text in args.set if "=" not in text]:
        raise ValueError(f"--set {wrong[0]}: give NAME=VALUE")
    values = dict(text.split("=", 1) for text in args.set)
    paths = [*map(Path, args.files)]
    written, notes = convert.convert(args.peer, paths, Path(args.output), args.lossy, values)
    for line in notes:
        print(_plain(line), file=sys.stderr)
    for path in written:
        tables.print_line(f"{path}: {path.stem} of {args.peer}")
    return 0


def _residency(args: argparse.Namespace) -> int:
    from dse.frontend import api, progress

    sets = _sets(args.set, api.residency)
    found = progress.run_with_progress(
        f"{args.workload} on {args.machine}", lambda _: api.residency(args.workload, args.machine, **sets)
    )
    _warn(found.workload)
    if args.format == "json":
        asked = {"orders": found.orders} if args.orders else {}
        asked |= {"as_schedules": found.schedules} if args.schedules else {}
        tables.print_json(found.document() | {name: answer() for name, answer in asked.items()})
        return 0
    width = tables.terminal_width()
    print(found.text(width), end="")
    if args.orders:
        from dse.frontend import screens

        print("\n" + screens.loop_orders(found.arch, found.workload, found.reuse, width), end="")
    if args.schedules:
        from dse.frontend import screens

        facts, listed = progress.run_with_progress("schedules", lambda _: found.ranking())
        print("\n" + screens.ranking(facts, listed, width), end="")
    return 0


def _plot(args: argparse.Namespace) -> int:
    """Runs `dse plot RUN KIND` or `dse plot WORKLOAD MACHINE KIND`."""
    from dse.frontend import api, check, pictures, progress, runs

    *sources, kind = args.words
    if len(sources) == 1 and check.is_machine(kind):
        kinds = ", ".join((*pictures.OF_MAPPED, "layout", *pictures.OF_REUSE[1:]))
        raise ValueError(f"{' '.join(args.words)}: give what to draw behind the machine: {kinds}")
    if len(sources) == 1:
        picture = runs.open(sources[0]).plot(kind, args.point, args.workload, args.einsum)
    elif len(sources) == 2:
        sets = _sets(args.set, api.map)
        if wrong := pictures.wrong_kind(kind):  # before anything is solved
            raise ValueError(wrong)

        def drawn(shown: Any) -> Any:
            if kind == "layout":
                return api.layout(sources[0], sources[1], args.layout, **sets)
            if kind in pictures.OF_REUSE and not (kind == "residency" and args.schedule):
                shown.step, shown.steps = "capacity", "capacities"
                nodes = api.machine_with(sources[1], sets).nodes if kind == "graph" else ()
                widths: dict[str, Any] = {
                    f"{node.name}.bits": {} for node in nodes if getattr(node, "bits", ())
                }  # of no graph
                return api.residency(*sources, **sets | widths).plot(kind, shown.update)
            return api.map(*sources, schedule=args.schedule, progress=shown.update, **sets).plot(
                kind, args.einsum, shown.update
            )

        picture = progress.run_with_progress(f"{kind} of {sources[0]} on {sources[1]}", drawn)
    else:
        raise ValueError(
            f"{' '.join(args.words)}: give RUN KIND or WORKLOAD MACHINE KIND; dse plot --help lists the kinds"
        )
    out = args.output or f"{kind}.png"
    picture.save(out)
    tables.print_line(f"{out}: {kind} of {' on '.join(sources)}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from dse.frontend import progress, runs

    runs.raise_if_repeated([args.dir, *args.others])
    others = [runs.open(path) for path in args.others]
    if args.serve is not None:
        from dse.frontend import serve

        with serve.server(serve.Live(Path(args.dir), others), args.serve) as served:
            tables.print_line(f"http://127.0.0.1:{served.server_port}/: report of {args.dir}; Ctrl-C ends it")
            sys.stdout.flush()
            served.serve_forever()
    run = _open(args)
    out = Path(args.output or f"{run.study.name}.html")
    progress.run_with_progress(f"report of {args.dir}", lambda _: run.report(out, others))
    tables.print_line(f"{out}: {out.stat().st_size / 1e6:.1f} MB, needs no network")
    return 0


def _pack(args: argparse.Namespace) -> int:
    from dse.frontend import check
    from dse.run import pack

    root = Path(args.dir)
    out = Path(args.output or f"{root.resolve().name}.zip")
    size = pack.pack(root, out)
    if versions := check.other_model(root):
        line = f"{root}: written by {versions}; only a dse of that model reads its rows"
        print(_plain(line), file=sys.stderr)
    tables.print_line(
        f"{out}: {size / 1e6:.1f} MB; next: dse show {out} best, dse sql {out}, dse pareto {out}"
    )
    return 0


def _export(args: argparse.Namespace) -> int:
    count = _open(args).to_optuna(args.storage)
    tables.print_line(f"{args.storage}: {count} trials; next: optuna-dashboard {args.storage}")
    return 0


def _simulate(args: argparse.Namespace) -> int:
    return _print_mapped(_simulated(args, args.mapping), args)


def _simulated(args: argparse.Namespace, mapping: str) -> Any:
    """Returns the cost of a mapping or schedule on the workload and machine of the command."""
    from dse.frontend import api

    workload, machine = (args.workload, args.machine) if args.command == "simulate" else args.words[:2]
    found = api.simulate(workload, machine, mapping, **_sets(args.set, api.simulate))
    _warn(found.workload)
    for line in found.broken_rules:
        print(_plain(f"warning: {mapping}: {line}"), file=sys.stderr)
    return found


POINT = re.compile(r"\d+(\.\d+)?|best(:\w+)?")  # of a run


def _compare(args: argparse.Namespace) -> int:
    """Runs `dse compare` of two runs, of two machines, of two points of a run, or of two mappings of a
    workload on a machine.
    """
    from dse.frontend import api, check, compare, runs, screens

    if len(args.words) == 2 and any(map(check.is_machine, args.words)):
        comparison = compare.machines(args.words[0], args.words[1], _sets(args.set, api.map))
    elif len(args.words) == 3 and all(map(POINT.fullmatch, args.words[1:])):
        comparison = compare.points(runs.open(args.words[0]), *args.words[1:])
    elif len(args.words) == 2 and all(POINT.fullmatch(one) and not Path(one).exists() for one in args.words):
        a, b = args.words
        raise ValueError(
            f"{a} {b}: two machines of a run, by number? give the run too: dse compare RUN {a} {b}"
        )
    elif len(args.words) == 2 and POINT.fullmatch(args.words[1]) and not Path(args.words[1]).exists():
        a, b = args.words
        raise ValueError(
            f"{b}: one machine of {a}; give the one to compare it with: dse compare {a} {b} best"
        )
    elif len(args.words) == 2:
        a, b = (runs.open(text) for text in args.words)
        comparison = compare.runs(a, b)
        if line := compare.other_work(a, b):
            print(_plain(f"warning: {line}"), file=sys.stderr)
    elif len(args.words) == 4:
        paths = args.words[2:]
        for path in paths:  # before anything is solved
            _raise_if_no_schedule(path)
        first, second = (_compared(args, path) for path in paths)
        for one, path in ((first, paths[0]), (second, paths[1])):
            if "energy_pj" not in one.totals:
                raise screens.NothingFits(f"{path}: {one.totals['reason']}")
        comparison = compare.mappings(first, second)
    else:
        raise ValueError(
            f"{' '.join(args.words)}: give RUN_A RUN_B, MACHINE_A MACHINE_B, RUN POINT_A POINT_B, or "
            "WORKLOAD MACHINE A B"
        )
    if args.format == "json":
        tables.print_json(compare.to_json(comparison))
        return 0
    for one in comparison:
        print(f"{compare.text(one, tables.terminal_width())}\n")
    return 0


def _schedule_names() -> tuple[str, ...]:
    from typing import get_args, get_type_hints

    from dse.solve.options import SolverOptions

    names: tuple[str, ...] = get_args(get_type_hints(SolverOptions)["schedule"])
    return names


def _raise_if_no_schedule(word: str) -> None:
    from hw.component import closest_name

    if not Path(word).exists() and word not in (names := _schedule_names()):
        raise ValueError(f"{word}: neither a file nor a name of solver.schedule; {closest_name(word, names)}")


def _compared(args: argparse.Namespace, word: str) -> Any:
    """Returns the schedule that a word of `dse compare` names (mapped.Mapped): a file, or what
    solver.schedule=WORD finds.
    """
    from dse.frontend import api, progress

    if Path(word).exists():
        names = {*args.words[2:]} & {*_schedule_names()}
        given = [text for text in args.set if not (names and "solver." in text)]
        return _simulated(argparse.Namespace(**{**vars(args), "set": given}), word)
    workload, machine = args.words[:2]
    sets = _sets([*args.set, f"solver.schedule={word}"], api.map)
    return progress.run_with_progress(
        f"{workload} on {machine}, {word}",
        lambda shown: api.map(workload, machine, progress=shown.update, **sets),
    )


def _runs(args: argparse.Namespace) -> int:
    from dse.frontend import compare

    if args.tag is not None:
        compare.tag(Path(args.dir), args.tag)
    rows = compare.under(Path(args.dir))
    tables.print_rows(
        compare.RUN_COLUMNS, rows, args.format, keep=("run", "state"), max_lines=tables.screen_lines(args.all)
    )
    if args.format == "table" and rows:
        tables.print_line(
            "hypervolume: in the box of each run's own points (dse status RUN --format json: "
            "hypervolume_reference), so no two compare; dse compare RUN_A RUN_B takes one box for both, and "
            "has other values"
        )
    return 0


def _check(args: argparse.Namespace) -> int:
    from dse.frontend import check, keys
    from workloads.graph import names_text

    if args.schema:
        tables.print_json(keys.schema(args.schema))
    elif not args.files:
        raise ValueError("dse check: which files? give FILE..., or --schema machine, study or workload")
    faults, good = [], []
    for text in args.files:
        try:
            line, layers = check.file(text, args.set)
            components, counted = check.components(text, args.set), check.sparsity(text)
            good.append({"file": text, "is": line, "layers": [layer._asdict() for layer in layers]})
            if components:
                good[-1] |= {"components": components}
            if counted:
                tiles = [row._asdict() for row in counted.tiles]
                good[-1] |= {"sparsity": {**counted.facts, "rows_with": counted.rows_with, "tiles": tiles}}
            if args.format == "text":
                tables.print_line(f"{text}: {line}")
                if layers:
                    *columns, _ = layers[0]._fields
                    lines = [(names_text(one.einsums), *one[1:-1]) for one in layers]
                    tables.print_table(columns, lines, keep=columns)
                if components:
                    keys_of = list(components[0])
                    rows = [[row.get(key) for key in keys_of] for row in components]
                    heads = [*map(units.label, keys_of)]
                    tables.print_table(heads, rows, keep=heads, unit_keys=keys_of)
                if counted:
                    _print_sparsity(counted.facts, counted.tiles)
        except ValueError as fault:
            faults.append(str(fault))
    if args.format == "json":
        tables.print_json({"files": good, "faults": [line for text in faults for line in text.splitlines()]})
    if faults:
        raise ValueError("\n".join(faults))
    return 0


def _print_sparsity(facts: dict[str, str], tiles: list[TileRow]) -> None:
    tables.print_table(("key", "value"), tables.labelled(facts), "sparsity")
    if tiles:
        tables.print_table([name.replace("_", " ") for name in tiles[0]._fields], tiles)
        tables.print_line(
            "A tile of rows has all columns, other tiles as many columns as rows. evenly: expected of as "
            "many nonzeros spread evenly."
        )


def _list(args: argparse.Namespace) -> int:
    header: Sequence[str] = ("what", "lists")
    rows: list[tuple[Any, ...]] = list(arguments.LISTINGS.items())
    if args.what:
        from dse.frontend import listings

        header, rows = listings.listing(args.what)
    if args.format == "table":
        is_pipe = not sys.stdout.isatty()
        if args.what == "keys" and (is_pipe or tables.terminal_width() < WIDE_KEYS):
            header, rows = _narrow_keys(header, rows)
        heads = [*map(units.label, header)]
        tables.print_rows(
            heads,
            rows,
            "table",
            keep=(*heads[:2], "given", "what", "meaning"),
            unit_keys=header,
            max_lines=tables.screen_lines(args.all),
            width=KEYS_IN_PIPES if args.what == "keys" and is_pipe else None,
        )
        return 0
    import pyarrow as pa

    found = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list(header))
    _print_result(found, args, max_lines=tables.screen_lines(args.all))
    return 0


def _narrow_keys(
    header: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """Returns the table of keys with values, unit and default below each meaning."""
    shown = []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        below = "; ".join(f"{name}: {cells[name]}" for name in ("values", "unit", "default") if cells[name])
        shown.append((cells["file"], cells["key"], "\n".join(filter(None, (cells["meaning"], below)))))
    return ("file", "key", "meaning"), shown


def _new(args: argparse.Namespace) -> int:
    from dse.frontend import templates

    text = templates.TEXTS[args.what]
    if args.file is None:
        print(text, end="")
        return 0
    path = Path(args.file)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as fault:
        raise ValueError(f"{path}: cannot be written ({fault.strerror}); give another name") from None
    tables.print_line(
        f"{path}: a {args.what} to start from; next: dse check {path}"
        + (f", dse run {path} --dry-run" if args.what == "study" else "")
    )
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "resume": _resume,
    "status": _status,
    "stop": _stop,
    "cache": _cache,
    "pareto": _pareto,
    "sql": _sql,
    "show": _show,
    "map": _map,
    "plot": _plot,
    "report": _report,
    "export": _export,
    "pack": _pack,
    "residency": _residency,
    "simulate": _simulate,
    "compare": _compare,
    "runs": _runs,
    "convert": _convert,
    "check": _check,
    "list": _list,
    "new": _new,
}
