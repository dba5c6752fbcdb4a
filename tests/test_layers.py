"""Import order of docs/design.md, read from the sources; and what `import dse` may load."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prove.__main__ import PARTS

ROOT = Path(__file__).parents[1]
# Import order: a file may import only what stands above it. cli joins all and comes last.
ORDER = """workloads/arrays workloads/document workloads/einsum workloads/operators workloads/graph workloads/lowered workloads/rebind
workloads/operands workloads/bodies workloads/facts workloads/onnx workloads/text workloads/retrace workloads/torch
workloads/layers workloads/matrix workloads/cnn workloads/mlp workloads/transformer workloads/recurrent workloads/diffusion workloads/hpc workloads/gnn
workloads/training workloads/catalog
hw/arch hw/component hw/tiling hw/space hw/columns hw/machine
dse/installed dse/compiled dse/fronts dse/layout/primitive dse/layout/address dse/layout/text dse/layout/count
dse/conversion dse/nest dse/schedule
dse/directives dse/record dse/folder dse/cache dse/sim/latency dse/sim/parts dse/sim/spans dse/sim/terms dse/dataflow/space dse/searched
dse/sim/counts dse/sim/transfer dse/sim/sharing
dse/sim/network dse/sim/boundary dse/sim/times dse/sim/cost dse/sim/bounds dse/sim/bound_kernels dse/sim/evaluate
dse/sim/boxes dse/sim/box_hops dse/sim/placed dse/sim/outermost dse/sim/directed dse/sim/faults dse/sim/ahead
dse/sim/graph dse/sim/kernels dse/join dse/assign/templates
dse/dataflow/steps dse/dataflow/lanes dse/dataflow/cost_descending dse/dataflow/improve
dse/dataflow/search_kernels dse/dataflow/search
dse/dataflow/ragged_kernels dse/dataflow/ragged_program dse/dataflow/ragged_vectors dse/dataflow/ragged dse/dataflow/optimal
dse/dataflow/frontier dse/dataflow/lined
dse/assign/convert dse/assign/layouts dse/dataflow/exhaustive
dse/dataflow/random dse/dataflow/annealing dse/assign/sampled
dse/tiling/factor dse/tiling/halo dse/tiling/schedule dse/tiling/smaug
dse/tiling/reading dse/tiling/export dse/tiling/replay dse/tiling/mapper
dse/reuse/operations dse/reuse/classify dse/reuse/order dse/reuse/accesses dse/reuse/residency dse/reuse/optimum dse/reuse/retention dse/reuse/sequence
dse/reuse/rereads dse/reuse/traffic
dse/reuse/rooms dse/reuse/emitted dse/reuse/picks dse/reuse/trips dse/reuse/nests dse/reuse/fused dse/reuse/family dse/reuse/turns dse/reuse/stages
dse/reuse/registers dse/reuse/floors dse/reuse/shares dse/reuse/segments dse/reuse/published dse/reuse/pipeline
dse/compile dse/stack dse/explain
dse/study/pareto dse/study/follows dse/study/prune dse/study/sampler dse/study/plan dse/study/read dse/study/study dse/asked dse/keys dse/check dse/units
dse/screen dse/progress dse/starts dse/arguments
cluster/store cluster/ruled cluster/priced cluster/worker cluster/known cluster/pool cluster/driver dse/figures
analysis/computed analysis/origin analysis/db analysis/plots analysis/report dse/pictures dse/page dse/door dse/cli dse/__main__"""
ORDER_OF = {name: i for i, name in enumerate(ORDER.split())}
JOIN = ("dse/pictures", "dse/page", "dse/door", "dse/cli", "dse/__main__")  # what joins the packages
PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
KNOWS = {"workloads": set(), "hw": {"workloads"}, "dse": {"workloads", "hw"}, "cluster": {"dse", "hw", "workloads"}, "analysis": {"dse"}}
READS = {  # all that they know of others: how files are read, what is drawn, types of arrays
    "analysis": ("dse", ("dse.folder", "dse.units", "dse.figures")), "hw": ("workloads", ("workloads.document", "workloads.arrays"))}
ONLY_IN = {"ray": "cluster/", "optuna": "dse/study/sampler.py", "duckdb": "analysis/"}
FILES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py") if p.name != "__init__.py")


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_file_imports_only_what_stands_above_it(path: Path) -> None:
    rel = path.relative_to(ROOT).as_posix()
    own = rel.removesuffix(".py")
    assert own in ORDER_OF, f"{rel} has no place in the order"
    for name in imports(path):
        module, top = name.replace(".", "/"), name.split(".")[0]
        if module in ORDER_OF and module != own:
            assert ORDER_OF[module] < ORDER_OF[own], f"{rel} imports {name}, which stands below it"
        if top in PACKAGES and own not in JOIN:
            assert top == own.split("/")[0] or top in KNOWS[own.split("/")[0]], f"{rel} imports {name}"
        if top in ONLY_IN and own not in JOIN:
            assert rel.startswith(ONLY_IN[top]), f"{rel} imports {name}"
        if top in PACKAGES and (package := own.split("/")[0]) in READS and top != package:
            assert name == top or name.startswith(READS[package][1]), f"{rel} imports {name}"


def test_init_files_are_empty_but_for_the_door() -> None:
    assert [p for name in PACKAGES for p in (ROOT / name).rglob("__init__.py") if p.read_text()] == [ROOT / "dse/__init__.py"]


def test_importing_dse_loads_no_heavy_library() -> None:
    code = "import dse, dse.cli, dse.stack, sys; print(sorted({'ray', 'optuna', 'duckdb', 'matplotlib', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


CITED = re.compile(r"\b(?:specs|docs|papers|data|studies|bench|tests|hw|dse|cluster|analysis|workloads)/[\w./-]*\.(?:md|txt|json|csv|py|sql|yaml)\b|DESIGN\.md")


def test_sources_cite_files_that_a_reader_has() -> None:
    """The whole repository is what a reader has."""
    files = [p for top in (*PACKAGES, "tests", "bench") for p in (ROOT / top).rglob("*.py")]
    missing = [f"{path.relative_to(ROOT)}: {name}" for path in files if path != Path(__file__) for name in CITED.findall(path.read_text())
               if not any((base / name).exists() for base in (ROOT, ROOT / "hw", ROOT / "tests"))]
    assert missing == []


def test_every_long_proof_can_be_loaded() -> None:
    """Nobody looks at them for weeks: what they import must be there."""
    assert all(callable(importlib.import_module(f"tests.prove.{part}").main) for part in PARTS)
