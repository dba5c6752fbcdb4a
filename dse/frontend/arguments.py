"""The commands of `dse`: their arguments, and an example each."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

TABLES = ("table", "csv", "json", "parquet")
TEXTS = ("text", "json")
PEERS = ("timeloop", "zigzag", "accelforge")
NESTS = (*TEXTS, "yaml", "schedule", "directives", *PEERS)
EXIT_CODES = {  # of every command
    0: "done",
    1: "failed: nothing fits, machines of a run ended in errors, a damaged run folder, a time limit",
    2: "wrong input: an argument or a file, with a line per fault",
    129: "ended: the terminal was closed (SIGHUP)",
    130: "interrupted: Ctrl-C",
    143: "ended: SIGTERM",
}
EXAMPLES = {
    "run": "dse run studies/edge_small.yaml --workers 2 --set stop.machines=60",
    "resume": "dse resume runs/edge-small",
    "status": "dse status runs/edge-small --format json",
    "stop": "dse stop runs/edge-small",
    "cache": "dse cache --prune --older 30",
    "pareto": "dse pareto runs/edge-small --objectives -throughput,power_mw --by dram_kind "
    "--where 'area_mm2 < 2'",
    "sql": 'dse sql runs/edge-small "SELECT dram_kind, min(energy_pj) / 1e6 AS energy_uj '
    'FROM designs GROUP BY ALL"',
    "show": "dse show runs/edge-small best --einsum res2_0_b --neighbours",
    "map": "dse map resnet50:batch=1 edge_array --objective edp --set gbuf.capacity='256 KiB'",
    "plot": "dse plot runs/edge-small front -o front.pdf; dse plot resnet18 edge_array nest --einsum conv1 "
    "-o nest.png",
    "report": "dse report runs/edge-small -o edge-small.html",
    "pack": "dse pack runs/edge-small -o edge-small.zip",
    "export": "dse export runs/edge-small sqlite:///edge-small.db",
    "residency": "dse residency cg:matrix=ecology1,n=8,form=periodic gogeta_clusters --set sram.capacity='1 "
    "MiB'",
    "simulate": "dse simulate gemm:m=64,n=32,k=48 a3 mapping.txt",
    "compare": "dse compare runs/edge-small runs/edge-large; dse compare mlp_s edge_array unfused best",
    "runs": "dse runs runs",
    "convert": "dse convert timeloop arch.yaml problem.yaml -o design --lossy",
    "check": "dse check studies/edge_small.yaml hw/machines/edge_array.yaml",
    "list": "dse list keys",
    "new": "dse new study my_study.yaml",
}


LISTINGS = {  # word of `dse list` -> what it prints
    "workloads": "built-in networks and their ONNX files, layers and solvers, with MACs and parameters",
    "machines": "built-in machines: levels, MAC units, area",
    "solvers": "values of the solver block (mapper, factors, schedule, ...) and what each does",
    "columns": "columns of tables and views, for dse sql, with units and meanings",
    "keys": "every key of machine, study and workload files, with defaults and units",
}
CHOICE_GAP = "', '"  # between the choices that argparse lists


def _advised(word: str, names: Sequence[str]) -> str:
    from hw.component import closest_name

    return f"{word}; {closest_name(word, names)}"


class _Parser(argparse.ArgumentParser):
    """A parser that reports a fault in one line, and takes options in full only: what a part of a name means
    would change with the next option.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        if wrong := re.fullmatch(r"(.*invalid choice: )'(.*)' \(choose from '(.*)'\)", message):
            message = f"{wrong[1]}{_advised(wrong[2], wrong[3].split(CHOICE_GAP))}"
        elif wrong := re.fullmatch(r"unrecognized arguments: (--[\w-]+).*", message):
            options = [name for name in self._option_string_actions if name.startswith("--")]
            message = f"unknown option {_advised(wrong[1], options)}"
        elif message.startswith("unrecognized arguments: "):
            message += (
                "; an option takes one word: A,B for a list, --set KEY=VALUE, 'quoted' where it has blanks"
            )
        print(f"{self.prog}: {message}; {self.prog} --help shows how", file=sys.stderr)
        sys.exit(2)


class _Version(argparse.Action):
    """Prints the versions and ends; what knows them is imported only then."""

    def __call__(self, *_: Any) -> NoReturn:
        from dse.frontend import check

        print(f"dse {check.versions_text()}")
        sys.exit(0)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a time, give seconds above 0")
    return found


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        is_percent = re.fullmatch(r"[0-9.]+ ?%", text)
        advice = f"write {float(text[:-1]) / 100:g}" if is_percent else "give e.g. 0.05"
        raise argparse.ArgumentTypeError(f"{text} is no share; {advice}") from None


def _days(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1e5:
        raise argparse.ArgumentTypeError(f"{text} is no age, give days, 0 or more")
    return found


def _memory(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,5} ?([MG]i?B)", text):
        raise argparse.ArgumentTypeError(f"{text} is not a size, give e.g. 500MB or 8GB")
    return text


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the arguments, with the command's name in `command`. Their order is free."""
    top_parser, commands = parsers()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] not in commands:
        return top_parser.parse_args(words)
    parsed = commands[words[0]].parse_intermixed_args(_join_objectives(words[1:]))
    parsed.command = words[0]
    return parsed


def _join_objectives(words: Sequence[str]) -> list[str]:
    """Turns --objectives -x,y into --objectives=-x,y, because argparse would take -x for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--objectives" and word.startswith("-") and not word.startswith("--"):
            joined[-1] = f"--objectives={word}"
        else:
            joined.append(word)
    return joined


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser of the whole line, for --help and faults, and one parser per command."""
    top_parser = _Parser(
        prog="dse",
        description="Design-space exploration of tensor accelerators: hardware x mapping, "
        "results in Parquet and SQL.",
        epilog="dse COMMAND --help shows the arguments and an example; begin with: dse map "
        "gemm:m=64,n=32,k=48 edge_array. Exit codes: "
        + "; ".join(f"{code}, {meaning}" for code, meaning in EXIT_CODES.items())
        + ".",
    )
    top_parser.add_argument(
        "--version", action=_Version, nargs=0, help="versions of the package, the cost model and the solvers"
    )
    commands = top_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    by_command: dict[str, argparse.ArgumentParser] = {}

    def add(name: str, text: str, *positional: str, forms: Sequence[str] = TEXTS) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=f"example: {EXAMPLES[name]}")
        for word in positional:
            sub.add_argument(word.lower(), metavar=word)
        if forms:
            others = (
                "yaml: mappings by einsum; schedule: one nest with branches; directives: KAPLA's; timeloop, "
                "zigzag, accelforge: mappings for these (docs/exchange.md); json"
                if forms == NESTS
                else "the others are"
            )
            sub.add_argument(
                "--format",
                choices=forms,
                default=forms[0],
                help=f"default: {forms[0]}, for people; {others} in pJ, ns, mm2, in full",
            )
        if "csv" in forms:
            sub.add_argument(
                "--all",
                action="store_true",
                help="all rows of a table on a terminal (default: as many as its screen holds)",
            )
            sub.add_argument(
                "--csv-safe",
                action="store_true",
                help="csv: text that a spreadsheet would take for a formula is quoted",
            )
        by_command[name] = sub
        return sub

    run = add("run", "start a study's run, or go on with it", "STUDY")
    run.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        help="run folder (default: runs/<name of the study>); file, s3, gs and abfs URLs too, here and below",
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of the study, e.g. stop.machines=60",
    )
    resume = add("resume", "go on with a run from the study in its folder", "DIR")
    for sub in (run, resume):
        sub.add_argument(
            "--workers",
            type=_count,
            metavar="N",
            help="actors (default: one per core); 0 runs in this process, without Ray",
        )
        sub.add_argument("--address", metavar="ADDR", help="an existing Ray cluster")
        sub.add_argument(
            "--metrics",
            type=_count,
            metavar="PORT",
            help="serve the status on 127.0.0.1:PORT while it runs: /metrics for Prometheus, /status.json",
        )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="what the run would take: machines, hours, disk; starts nothing",
    )
    status = add("status", "what a run has done; works while it runs", "DIR")
    status.add_argument("--watch", action="store_true", help="again every second, until the run has ended")
    stop = add("stop", "end a run from another terminal, on any host, as Ctrl-C there does", "DIR", forms=())
    stop.add_argument(
        "--now",
        action="store_true",
        help="as a second Ctrl-C: what workers solve now is given up, all that is solved is committed",
    )
    cache = add("cache", "what $DSE_CACHE holds, by kind and version; or prune it")
    cache.add_argument(
        "--prune",
        action="store_true",
        help="remove answers of other versions of dse, or as --older or --all say",
    )
    cache.add_argument(
        "--older", type=_days, metavar="DAYS", help="with --prune: remove what was written so many days ago"
    )
    cache.add_argument("--all", action="store_true", help="with --prune: remove all answers")
    front = add("pareto", "the Pareto front of a run", "DIR", forms=TABLES)
    front.add_argument(
        "--objectives",
        metavar="A,B,...",
        help="columns of points; -x or x:max maximises (default: the study's)",
    )
    front.add_argument(
        "--epsilon",
        type=_share,
        metavar="SHARE",
        help="few points, so that each of the front has one that is worse by at most this share, e.g. 0.05",
    )
    front.add_argument(
        "--knee",
        action="store_true",
        help="its knee: least sum of objectives, scaled to 0 (best) .. 1 (worst); of equal sums that whose "
        "worst objective is best",
    )
    front.add_argument(
        "--why", action="store_true", help="the notes below the table in full: what may be missing, and why"
    )
    front.add_argument("--where", default="", metavar="SQL", help="condition over points and machines")
    front.add_argument(
        "--by", default="", metavar="A,B,...", help="a front for each value of these columns, e.g. dram_kind"
    )
    front.add_argument(
        "--distinct",
        action="store_true",
        help="tied designs (equal in all objectives) in one row, with how many there are",
    )
    sql = add(
        "sql", "one read-only statement over the views; without a statement: a prompt", "DIR", forms=TABLES
    )
    sql.add_argument("statement", nargs="?", metavar="SELECT...")
    for sub in (front, sql):
        sub.add_argument(
            "--timeout",
            type=_seconds,
            default=60.0,
            metavar="S",
            help="seconds that the statement may take (default: 60)",
        )
    shown = add(
        "show",
        "explain a point of a run: MACHINE, MACHINE.SCHEDULE, best or best:COLUMN",
        "DIR",
        "POINT",
        forms=NESTS,
    )
    shown.add_argument(
        "--neighbours",
        action="store_true",
        help="one-at-a-time sensitivity: what one step of each parameter changes (of a long axis also a "
        "sixteenth of it), among the machines that the run has solved",
    )
    shown.add_argument(
        "--export",
        metavar="FOLDER",
        help="write the point as files that need no run: its machine, the workload files, its mappings, also "
        "in the form of --format; and in README.txt the commands that price them (networks of the catalog "
        "are built into dse)",
    )
    report = add(
        "report",
        "a run as one HTML file: fronts with filters, points explained, sensitivity, infeasible machines",
        "DIR",
        forms=(),
    )
    report.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it (default: <name of the study>.html)"
    )
    report.add_argument(
        "--serve",
        nargs="?",
        type=_count,
        const=0,
        metavar="PORT",
        help="serve it on 127.0.0.1 instead, and follow the run, until Ctrl-C (default: any free port)",
    )
    for sub in (sql, report):
        sub.add_argument(
            "--with",
            dest="others",
            action="append",
            default=[],
            metavar="DIR",
            help="another run, too (repeatable): its rows, in a column `run`; its front in the report",
        )
    packed = add(
        "pack",
        "a run as one file, which show, sql, pareto and report open like its folder, anywhere",
        "DIR",
        forms=(),
    )
    packed.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it (default: <name of the folder>.zip)"
    )
    exported = add(
        "export",
        "a run as a study in a storage of Optuna's, for its dashboard: a journal FILE or sqlite:///FILE",
        "DIR",
        "STORAGE",
        forms=(),
    )
    for sub in (front, sql, shown, report, exported):
        sub.add_argument(
            "--memory",
            type=_memory,
            default="4GB",
            metavar="SIZE",
            help="memory limit of DuckDB; a statement that needs more fails (default: 4GB)",
        )
    for sub in (status, front, sql, shown, report, exported):
        sub.add_argument(
            "--skip-damaged",
            action="store_true",
            help="leave out what is not byte for byte what was committed (default: refuse to answer)",
        )
    mapped = add("map", "solve one workload on one machine", "WORKLOAD", "MACHINE", forms=NESTS)
    mapped.add_argument("--objective", choices=("energy", "latency", "edp"), help="default: energy")
    mapped.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="solver.KEY=VALUE, a field of the machine such as gbuf.capacity, or limits.seconds=S",
    )
    mapped.add_argument(
        "--layout",
        action="append",
        default=[],
        metavar="TENSOR=TEXT",
        help="how a tensor lies in the outermost level (TENSOR@LEVEL: its tile in another one), e.g. I='N "
        "H/4 W C h4'; default: row-major",
    )
    mapped.add_argument(
        "--front",
        action="store_true",
        help="the front: unfused schedules of the workload in energy and latency, within solver.gap; or of "
        "one einsum (--einsum) mappings in energy, latency and bytes of the outermost bounded memory: a "
        "table, or with schedules or nests as json",
    )
    residency = add(
        "residency",
        "on-chip retention between operations: main-memory traffic of GOGETA's configurations and "
        "the optimum",
        "WORKLOAD",
        "MACHINE",
    )
    residency.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the machine, e.g. sram.capacity='1 MiB'",
    )
    residency.add_argument(
        "--orders",
        action="store_true",
        help="loop orders with which operations pipeline, and swizzled tensors (GOGETA, Algorithm 3)",
    )
    residency.add_argument(
        "--schedules",
        action="store_true",
        help="the configurations as schedules beside these lists, and the cause of each difference (takes as "
        "long as their mappings; of loops form=unrolled)",
    )
    plot = add("plot", "a picture as PNG, SVG or PDF", forms=())
    plot.usage = (
        "dse plot RUN {front,breakdown,roofline,sensitivity,progress} [-o FILE]\n"
        "       dse plot WORKLOAD MACHINE {nest,mapping,roofline,breakdown,ski-slope,residency,layout,\n"
        "                 traffic-over-capacity,traffic-per-tensor,graph} [-o FILE]"
    )
    plot.add_argument(
        "words",
        nargs="+",
        metavar="WORD",
        help="a run folder and what to draw of it, or a workload, a machine and what to draw of them",
    )
    plot.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it, by its end: .png, .svg, .pdf (default: KIND.png)",
    )
    plot.add_argument(
        "--point", default="best", help="roofline of a run: MACHINE, MACHINE.SCHEDULE, best or best:COLUMN"
    )
    plot.add_argument(
        "--workload",
        default="",
        metavar="NAME",
        help="roofline of a run: of this workload (default: the first)",
    )
    plot.add_argument(
        "--einsum",
        metavar="NAME",
        help="nest, mapping, ski-slope, roofline: of this einsum (default: the costliest; of ski-slope and "
        "roofline the whole workload)",
    )
    plot.add_argument(
        "--layout",
        default="",
        metavar="TENSOR=TEXT",
        help="layout: how the tensor lies, e.g. I='N H/4 W C h4'",
    )
    plot.add_argument(
        "--schedule",
        default="",
        metavar="FILE",
        help="draw this schedule (docs/model.md, Schedules), not the mappings found",
    )
    plot.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="solver.KEY=VALUE, or a field of the machine such as gbuf.capacity",
    )
    simulated = add(
        "simulate",
        "cost a given mapping, or a whole schedule (docs/model.md, Schedules)",
        "WORKLOAD",
        "MACHINE",
        "MAPPING",
        forms=NESTS,
    )
    for sub in (shown, mapped):
        sub.add_argument(
            "--schedule",
            metavar="FILE",
            default="",
            help="price a schedule (docs/model.md, Schedules), or mappings; einsums that it leaves out are "
            "mapped alone, unfused. Of equal einsums a schedule replaces those that it names, a mapping "
            "(YAML, directives) all",
        )
    simulated.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the machine such as gbuf.capacity",
    )
    for sub in (shown, mapped, simulated):
        sub.add_argument(
            "--einsum",
            metavar="NAME",
            help="nest, traffic, footprint and busy cycles of this einsum, or of all (default: the one of "
            "most energy; with --format json none)",
        )
        sub.add_argument(
            "--names",
            metavar="FILE",
            help="--format timeloop: an architecture of Timeloop whose names the mapping bears",
        )
        sub.add_argument(
            "--why",
            action="store_true",
            help="the certificate in full: what is proven and how far, what was searched and what not",
        )
    compared = add(
        "compare",
        "what differs between two runs, two machines, two points of a run, or two schedules of a workload "
        "on a machine",
    )
    compared.usage = (
        "dse compare RUN_A RUN_B\n       dse compare MACHINE_A MACHINE_B\n       "
        "dse compare RUN POINT_A POINT_B\n       dse compare WORKLOAD MACHINE A B [--set KEY=VALUE]"
    )
    compared.add_argument(
        "words",
        nargs="+",
        metavar="WORD",
        help="two run folders; two machines; a run and two of its points as of dse show (17, best); or a "
        "workload, a machine and two files with mappings, or names of solver.schedule, which are solved: "
        "unfused best",
    )
    compared.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the machine, or solver.KEY=VALUE",
    )
    listed = add(
        "runs", "the runs under a folder: state, study, machines, front, hypervolume, tags", forms=TABLES[:3]
    )
    listed.add_argument("--tag", metavar="A,B,...", help="tags of the run DIR from now on; '' removes them")
    listed.add_argument("dir", nargs="?", default="runs", metavar="DIR", help="default: runs")
    converted = add(
        "convert",
        "files of Timeloop, ZigZag, AccelForge, SCALE-Sim or MAESTRO as ours (docs/exchange.md)",
        forms=(),
    )
    converted.add_argument(
        "peer", choices=(*PEERS, "scalesim", "maestro"), metavar="timeloop|zigzag|accelforge|scalesim|maestro"
    )
    converted.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="architecture, problem, mapping, energies (ERT), in any order",
    )
    converted.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        help="where machine.yaml, workload.yaml and mapping.yaml are written",
    )
    converted.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a name that a template leaves open"
    )
    converted.add_argument(
        "--lossy", action="store_true", help="convert, though something is lost; each loss is said in a line"
    )
    checked = add("check", "validate files, all faults at once")
    checked.add_argument("files", nargs="*", metavar="FILE")
    checked.add_argument(
        "--schema",
        choices=("machine", "study", "workload"),
        help="print the JSON Schema of such files, for editors",
    )
    checked.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the machines and studies checked: as in dse map and dse run, e.g. gbuf.capacity='64 KiB'",
    )
    add(
        "list", "what exists; keys: every key of machine, study and workload files", forms=TABLES
    ).add_argument("what", nargs="?", choices=tuple(LISTINGS), help="without a word: what each of them lists")
    new = add("new", "a commented file to start from", forms=())
    new.add_argument("what", choices=("machine", "study", "workload"))
    new.add_argument("file", nargs="?", metavar="FILE", help="where to write it (default: to the screen)")
    return top_parser, by_command
