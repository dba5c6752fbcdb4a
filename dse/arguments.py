"""What a user can type: the commands of `dse`, their arguments, an example each."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

FORMATS = ("table", "csv", "json", "parquet")
EXAMPLES = {
    "run": "dse run studies/edge_small.yaml --workers 2 --set stop.points=60",
    "resume": "dse resume runs/edge-small",
    "status": "dse status runs/edge-small --json",
    "pareto": "dse pareto runs/edge-small --objectives energy_pj,latency_ns --where 'area_mm2 < 2'",
    "sql": 'dse sql runs/edge-small "SELECT status, count(*) FROM machines GROUP BY status"',
    "show": "dse show runs/edge-small best --einsum res2_0_b",
    "map": "dse map resnet50:batch=1 edge_array --objective edp --set gbuf.capacity='256 KiB'",
    "simulate": "dse simulate gemm:m=64,n=32,k=48 a3 mapping.txt",
    "check": "dse check studies/edge_small.yaml hw/machines/edge_array.yaml",
    "list": "dse list workloads",
}


class _Parser(argparse.ArgumentParser):
    """A fault is one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; {self.prog} --help shows how", file=sys.stderr)
        sys.exit(2)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no number of workers, give 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no time, give seconds above 0")
    return found


def _memory(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,5} ?([MG]i?B)", text):
        raise argparse.ArgumentTypeError(f"{text} is no size, give e.g. 500MB or 8GB")
    return text


def parser() -> argparse.ArgumentParser:
    """A parser whose result names the command in `command`."""
    found = _Parser(prog="dse", description="Design-space exploration of tensor accelerators: hardware x mapping, results in Parquet and SQL.")
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *positional: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=f"example: {EXAMPLES[name]}")
        for word in positional:
            sub.add_argument(word.lower(), metavar=word)
        return sub

    run = add("run", "start a study's run, or go on with it", "STUDY")
    run.add_argument("--out", metavar="DIR", help="run folder (default: runs/<name of the study>)")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the study, e.g. stop.points=60")
    resume = add("resume", "go on with a run from the study in its folder", "DIR")
    for sub in (run, resume):
        sub.add_argument("--workers", type=_count, metavar="N", help="actors (default: one per core); 0 runs in this process, without Ray")
        sub.add_argument("--address", metavar="ADDR", help="an existing Ray cluster")
    run.add_argument("--dry-run", action="store_true", help="what the run would cost, from 20 probes; starts nothing")
    status = add("status", "what a run has done; works while it runs", "DIR")
    status.add_argument("--json", action="store_true")
    front = add("pareto", "the front of a run", "DIR")
    front.add_argument("--objectives", metavar="A,B,...", help="columns of points; -x or x:max maximises (default: the study's)")
    front.add_argument("--where", default="", metavar="SQL", help="condition over points and machines")
    sql = add("sql", "one read-only statement over the views; without a statement: a prompt", "DIR")
    sql.add_argument("statement", nargs="?", metavar="SELECT...")
    for sub in (front, sql):
        sub.add_argument("--format", choices=FORMATS, default="table")
        sub.add_argument("--timeout", type=_seconds, default=60.0, metavar="S", help="seconds that the statement may take (default: 60)")
    shown = add("show", "explain a point of a run: MACHINE, MACHINE.SCHEDULE or best", "DIR", "POINT")
    for sub in (front, sql, shown):
        sub.add_argument("--memory", type=_memory, default="4GB", metavar="SIZE", help="what DuckDB may take, beyond it fails (default: 4GB)")
    for sub in (status, front, sql, shown):
        sub.add_argument("--skip-damaged", action="store_true", help="leave out what is not byte for byte what was committed (default: refuse to answer)")
    mapped = add("map", "solve one workload on one machine", "WORKLOAD", "MACHINE")
    mapped.add_argument("--objective", choices=("energy", "latency", "edp"), help="default: energy")
    mapped.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="solver.KEY=VALUE, or a field of the machine such as gbuf.capacity")
    mapped.add_argument("--format", choices=("text", "json", "yaml"), default="text")
    simulated = add("simulate", "cost a given mapping", "WORKLOAD", "MACHINE", "MAPPING")
    simulated.add_argument("--format", choices=("text", "json"), default="text")
    for sub in (shown, mapped, simulated):
        sub.add_argument("--einsum", metavar="NAME", help="nest, traffic and footprints of this einsum, or of all (default: the one of most energy)")
    checked = add("check", "validate files, all faults at once")
    checked.add_argument("files", nargs="+", metavar="FILE")
    add("list", "what exists").add_argument("what", choices=("workloads", "machines", "solvers", "columns"))
    return found
