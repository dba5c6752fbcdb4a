"""Who may import whom, read from folders and sources; and what `import dse` may load."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import dse
from dse.frontend import listings
from tests.prove.__main__ import PARTS

pytestmark = pytest.mark.xdist_group("layers")

ROOT = Path(__file__).parents[1]
PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
# Floors of dse, from the ground up: a file imports its own floor and those below it.
FLOORS = ("run", "mapping", "layout", "sim", "mapper", "solve", "study", "explain", "exchange", "frontend")
JOIN = ("dse/frontend/", "dse/__init__.py", "dse/__main__.py")  # what joins the packages
KNOWS = {
    "workloads": set(),
    "hw": {"workloads"},
    "dse": {"workloads", "hw"},
    "cluster": {"dse", "hw", "workloads"},
    "analysis": {"dse", "workloads"},
}
# All that they know of others: how files are read, what is drawn, what a hypervolume is
READS = {
    "analysis": (
        "dse.run.folder",
        "dse.run.temporary",
        "dse.explain.units",
        "dse.explain.figures",
        "dse.explain.reuse_figures",
        "dse.study.pareto",
        "workloads.arrays",
        "workloads.meant",
        "workloads.renamed",
    ),
    "hw": (
        "workloads.arrays",
        "workloads.document",
        "workloads.meant",
        "workloads.plugin",
        "workloads.renamed",
    ),
}
ONLY_IN = {
    "ray": "cluster/",
    "optuna": ("dse/study/sampler.py", "dse/study/optuna_storage.py", "dse/solve/layouts/sampled.py"),
    "duckdb": "analysis/",
}
FILES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py") if p.name != "__init__.py")


@cache
def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


@cache
def edges() -> list[tuple[str, str]]:
    """(file, file that it imports), as paths without suffix."""
    known = {p.relative_to(ROOT).as_posix().removesuffix(".py") for p in FILES}
    own = [
        (p.relative_to(ROOT).as_posix().removesuffix(".py"), name.replace(".", "/"))
        for p in FILES
        for name in imports(p)
    ]
    return [(a, b) for a, b in own if b in known and a != b]


def floor(file: str) -> int | None:
    """Of a file in a folder of dse."""
    parts = file.split("/")
    return FLOORS.index(parts[1]) if parts[0] == "dse" and len(parts) > 2 else None


def test_no_file_imports_what_stands_above_it() -> None:
    floors = [(a, b, floor(a), floor(b)) for a, b in edges()]
    assert [
        (a, b) for a, b, own, other in floors if own is not None and other is not None and other > own
    ] == []
    assert [
        sorted(ring) for ring in nx.strongly_connected_components(nx.DiGraph(edges())) if len(ring) > 1
    ] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_package_knows_few_others(path: Path) -> None:
    rel = path.relative_to(ROOT).as_posix()
    package = rel.split("/")[0]
    for name in imports(path) if not rel.startswith(JOIN) else ():
        top = name.split(".")[0]
        if top in PACKAGES:
            assert top == package or top in KNOWS[package], f"{rel} imports {name}"
        if top in ONLY_IN:
            assert rel.startswith(ONLY_IN[top]), f"{rel} imports {name}"
        if top in PACKAGES and package in READS and top != package:
            parts = {one.rpartition(".")[0] for one in READS[package]}
            assert name == top or name in parts or name.startswith(READS[package]), f"{rel} imports {name}"


def test_init_files_are_empty_but_for_the_door() -> None:
    assert [p for name in PACKAGES for p in (ROOT / name).rglob("__init__.py") if p.read_text()] == [
        ROOT / "dse/__init__.py"
    ]


def test_importing_dse_loads_no_heavy_library() -> None:
    code = (
        "import dse, dse.frontend.cli, dse.solve.solve, sys; print(sorted({'ray', 'optuna', 'duckdb', "
        "'matplotlib', 'plotly'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


HEAVY = (
    *("numba", "ray", "optuna", "pandas", "duckdb", "pyarrow", "onnx", "matplotlib", "moocore", "sklearn"),
    *("rich.console", "dse.sim", "dse.mapper", "dse.solve.solve", "dse.study.study"),
)


SOLVERS = ("ray", "optuna", "sklearn", "dse.mapper.exact", "dse.mapper.baselines", "dse.solve.solve")
# what a question of stored values does not need
STORED_NEEDS_NO = (
    *("numba", "pandas", "onnx", "networkx", "matplotlib", "scipy", "rich.console"),
    *(*SOLVERS, "dse.sim.einsum.evaluate", "dse.explain.derived", "dse.explain.values"),
)


def loaded_by(command: Sequence[str], names: Sequence[str], folder: Path = ROOT) -> list[str]:
    """Those of some modules that a command imports, in a process of its own."""
    code = (
        "import contextlib, sys; from dse.frontend import cli\n"
        f"with contextlib.suppress(SystemExit): cli.main({[*command]})\n"
        f"print([name for name in {[*names]} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return ast.literal_eval(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("--help", ()),
        ("list", ()),
        ("map --help", ()),
        ("list columns", ("hw", "workloads")),
        ("list machines", ("hw", "workloads")),
        ("list keys", ("hw", "workloads", "numpy", "moocore", "dse.sim")),
        ("list solvers", ("hw", "workloads", "numpy")),
        ("list workloads", ("hw", "workloads", "numpy")),
        ("status nowhere", ("hw", "workloads")),
    ],
)
def test_a_command_loads_no_more_than_it_needs(command: str, needed: tuple[str, ...]) -> None:
    """Start-up is short because of it."""
    if command in ("list solvers", "list workloads"):
        listings.listing(command.split()[1])  # in $DSE_CACHE from now on
    rest = [name for name in ("hw", "workloads", "numpy", *HEAVY) if name not in needed]
    assert loaded_by(command.split(), rest) == []


def test_a_listing_is_kept_until_a_source_of_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask() -> listings.Listing:
        asked.append("")
        return ("key",), [("a", 1, None)]

    for question in ("one", "one", "two", "one"):
        assert listings._cached_listing((question,), ask) == (("key",), [("a", 1, None)])
    assert len(asked) == 2
    before = listings._workload_sources()
    assert before == listings._workload_sources()
    monkeypatch.setattr(listings, "version", lambda _: "0")
    assert before != listings._workload_sources()


CITED = re.compile(
    r"\b(?:specs|docs|papers|data|studies|bench|tests|hw|dse|cluster|analysis|workloads)/[\w./-]*\.(?:md|txt|json|csv|py|sql|yaml)\b|DESIGN\.md"
)


def test_sources_cite_files_that_a_reader_has() -> None:
    """The whole repository is what a reader has."""
    files = [p for top in (*PACKAGES, "tests", "bench") for p in (ROOT / top).rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        if path != Path(__file__)
        for name in CITED.findall(path.read_text())
        if not any((base / name).exists() for base in (ROOT, ROOT / "hw", ROOT / "tests"))
    ]
    assert missing == []


def test_every_long_proof_can_be_loaded() -> None:
    """Nobody looks at them for weeks: what they import must be there."""
    assert all(callable(importlib.import_module(f"tests.prove.{part}").main) for part in PARTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    (folder / "study.yaml").write_text(
        "name: one\nworkloads: ['gemm:m=8,n=8,k=8']\nmachine: edge_array\nspace: {array.x: [8, 16]}\n"
        "objectives: [energy_pj]\nsearch: {method: exhaustive}\n"
    )
    dse.sweep(folder / "study.yaml", out=folder / "run", workers=0)
    return str(folder / "run")


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        (("sql", "SELECT min(energy_pj) FROM points"), STORED_NEEDS_NO),
        (("status",), (*STORED_NEEDS_NO, "duckdb", "moocore", "dse.sim", "dse.mapper", "analysis.db")),
        (("sql", "SELECT count(*) FROM einsums"), (*SOLVERS, "pandas", "onnx")),
        (("pareto",), (*SOLVERS, "pandas")),
        (("show", "best"), (*SOLVERS, "pandas")),
    ],
)
def test_a_question_of_a_run_loads_no_more_than_it_needs(
    run: str, command: tuple[str, ...], unneeded: tuple[str, ...]
) -> None:
    assert loaded_by([command[0], run, *command[1:]], unneeded) == []
