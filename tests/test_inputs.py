"""Wrong input through the command: one clear line per fault, all faults of a file at once, exit 2, no
traceback.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.amount import some
from tests.commands import dse, good

pytestmark = pytest.mark.xdist_group("inputs")

ROOT = Path(__file__).resolve().parent.parent
DSE = str(Path(sys.executable).with_name("dse"))
EDGE = (ROOT / "hw/machines/edge_array.yaml").read_text()
GEMM = "gemm:m=8,n=8,k=8"
STUDY = """\
name: small
workloads: ["gemm:m=64,n=32,k=48"]
machine: edge_array
space:
  array.x: [4, 8]
  gbuf.capacity: [4 KiB, 16 KiB]
objectives: [energy_pj, latency_ns, area_mm2]
"""
NEST = "store DRAM A B C\nstore GLB A B C\nfor m tile 1\n  for n tile 1\n    for k tile 1\n      mac\n"
FFN = 'extents: {m: 4, n: 2, k: 3}\neinsums:\n- "C[m,n] += A[m,k] * B[k,n]"\n- "D[m,n] = relu(C[m,n])"\n'

MACHINES = {  # file -> (text of edge_array, what stands there instead)
    "key.yaml": ("multicast: true", "multicst: true"),
    "unit.yaml": ("128 KiB", "128 KB"),
    "plain.yaml": ("128 KiB", "131072"),
    "negative.yaml": ("128 KiB", "-128 KiB"),
    "twice.yaml": ("clock_mhz: 500", "clock_mhz: 500\nclock_mhz: 600"),
    "lanes.yaml": ("x: 16", "x: 0"),
    "dram.yaml": ("kind: lpddr4", "kind: ddr9"),
    "headless.yaml": ("- {compute: mac, kind: int8}\n", ""),
    "tiny.yaml": ("512 B", "2 B"),
    "clock.yaml": ("clock_mhz", "clock_mz"),
    "nods.yaml": ("nodes:", "nods:"),
}
STUDIES = {
    "aimless.yaml": ("objectives: [energy_pj, latency_ns, area_mm2]\n", ""),
    "metric.yaml": ("energy_pj", "energie"),
    "template.yaml": ("edge_array", "edge_aray"),
    "void.yaml": ("[4, 8]", "[]"),
    "field.yaml": ("array.x", "array.z"),
    "minus.yaml": ("4 KiB", "-4 KiB"),
    "size.yaml": ("4 KiB", "4 KB"),
    "nobody.yaml": ("objectives", 'constraints: ["area_mm2 <= 0.0001"]\nobjectives'),
    "term.yaml": ("objectives", 'constraints: ["aera_mm2 <= 1"]\nobjectives'),
    "word.yaml": ("objectives", "constraint: []\nobjectives"),
    "double.yaml": ("name: small", "name: small\nname: large"),
    "gem.yaml": ("gemm:", "gem:"),
    "folder.yaml": ("name: small", "name: a/b"),
    "swapped.yaml": ("[4, 8]", "{from: 8, to: 4, step: x2}"),
    "unquoted.yaml": ('["gemm:m=64,n=32,k=48"]', "[gemm:m=64,n=32,k=48]"),
    "torn.yaml": ('["gemm:m=64,n=32,k=48"]', "[{workload: gemm:m=64,n=32,k=48}]"),
    "objectivs.yaml": ("objectives", "objectivs"),
    "unbuilt.yaml": ("16 KiB]\n", '16 KiB]\n  node_nm: [32, 3]\nconstraints: ["area_mm2 <= 0.0001"]\n'),
}
NESTS = {
    "level.txt": ("GLB", "GLX"),
    "tensor.txt": ("GLB A B C", "GLB A B C D"),
    "rank.txt": ("mac", "for z tile 1\n mac"),
    "tile.txt": ("for m tile 1", "for m tile 2"),
    "words.txt": ("for n tile", "for n tiles"),
    "dim.txt": ("for m tile 1", "parfor m tile 1 over Q"),
    "open.txt": ("mac", "mca"),
    "wide.txt": ("for m tile 1", "for m tile 9"),
}
OTHERS = {
    "list.yaml": "- a\n- b\n",
    "broken.yaml": "a: [1\n",
    "empty.yaml": "",
    "ring.yaml": FFN.replace("A[m,k]", "D[m,k]"),
    "extent.yaml": FFN.replace("k: 3", "k: -3"),
    "rankless.yaml": FFN.replace(", k: 3", ""),
    "many.yaml": EDGE.replace("128 KiB", "128 KB")
    .replace("lpddr4", "ddr9")
    .replace("multicast", "multicst")
    .replace("clock_mhz: 500", "clock_mhz: -1"),
    "doubled.yaml": FFN + "extents: {m: 5}\n",
    "notes.txt": "no nest at all\n",
    "ok_machine.yaml": EDGE,
    "ok_net.yaml": FFN,
    "blank.txt": "",
}

BROKEN: list[tuple[list[str], list[list[str]]]] = [  # command -> what each line holds
    (["map", "resnet51", "edge_array"], [["resnet51", "resnet50"]]),
    (["map", "resnet50:bach=2", "edge_array"], [["bach", "batch?"]]),
    (["map", "resnet50:batch=0", "edge_array"], [["batch = 0", "at least 1"]]),
    (["map", "resnet50:batch=two", "edge_array"], [["batch=two", "batch=number"]]),
    (["map", "gemm:m=64,n=32", "edge_array"], [["k is missing", "gemm:m=...,n=...,k=..."]]),
    (["map", "gemm:m=0,n=1,k=1", "edge_array"], [["m = 0", "at least 1"]]),
    (["map", "absent.onnx", "edge_array"], [["absent.onnx", "No such file"]]),
    (["map", "cut.onnx", "edge_array"], [["cut.onnx", "truncated", "again"]]),
    (["map", "cycle.onnx", "edge_array"], [["cycle.onnx", "cycle", "first", "second"]]),
    (["map", "symbol.onnx", "edge_array"], [["symbol.onnx", '"N"', "bind: {N: 1}"]]),
    (["map", "symbol.onnx:N=4,Q=3", "edge_array"], [["symbol.onnx", '"Q"', "N"]]),
    (["map", "ring.yaml", "edge_array"], [["ring.yaml", "cycle", "C", "D"]]),
    (["map", "extent.yaml", "edge_array"], [["extent.yaml", "extents.k = -3", "1"]]),
    (["map", "rankless.yaml", "edge_array"], [["rankless.yaml", "einsums[0]", "rank k", "known: m, n"]]),
    (["map", GEMM, "edge_aray"], [["machine = edge_aray", "edge_array"]]),
    (["map", GEMM, "absent.yaml"], [["absent.yaml", "No such file", "give the path"]]),
    (["map", GEMM, "negativ.yaml"], [["negativ.yaml", "No such file", "did you mean negative.yaml?"]]),
    (["map", GEMM, "key.yaml"], [["key.yaml", "array.multicst", "multicast?"]]),
    (["map", GEMM, "unit.yaml"], [["unit.yaml", "gbuf.capacity", '"128 KB"', "128 KiB"]]),
    (["map", GEMM, "plain.yaml"], [["plain.yaml", "gbuf.capacity = 131072", "128 KiB"]]),
    (["map", GEMM, "negative.yaml"], [["negative.yaml", "gbuf.capacity", "-128 KiB", "at least 1"]]),
    (["map", GEMM, "twice.yaml"], [["twice.yaml", "line", "clock_mhz", "keep one"]]),
    (["map", GEMM, "lanes.yaml"], [["lanes.yaml", "array.dims.x = 0", "raise it"]]),
    (["map", GEMM, "dram.yaml"], [["dram.yaml", "dram.kind", "ddr9", "ddr4 or"]]),
    (["map", GEMM, "headless.yaml"], [["headless.yaml", "compute", "exactly one"]]),
    (["map", GEMM, "tiny.yaml"], [["regf", "2 B", "64 B", "change"]]),
    (
        ["map", GEMM, "many.yaml"],
        [["clock_mhz = -1"], ["dram.kind", "ddr9"], ["gbuf.capacity", "128 KB"], ["array.multicst"]],
    ),
    (["map", GEMM, "edge_array", "--set", "gbuf.capcity=1 KiB"], [["gbuf.capcity", "gbuf.capacity?"]]),
    (["map", GEMM, "edge_array", "--set", "gbuf.capacity=12"], [["gbuf.capacity = 12", "KiB"]]),
    (["map", GEMM, "edge_array", "--set", "nonsense"], [["--set nonsense", "write --set nonsense=VALUE"]]),
    (["map", GEMM, "edge_array", "--set", "gbuf.capacity=[1"], [["--set gbuf.capacity=[1", "quote"]]),
    (
        ["map", GEMM, "edge_array", "--set", "solver.mapper=best"],
        [["solver.mapper", "best", "cost_descending"]],
    ),
    (["map", GEMM, "edge_array", "--set", "solver.objectiv=energy"], [["solver.objectiv", "objective?"]]),
    (["map", GEMM, "edge_array", "--objective", "speed"], [["--objective", "speed", "latency"]]),
    (["map", GEMM, "edge_array", "--einsum", "other", "--format", "json"], [["--einsum other", "gemm"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "level.txt"], [["level.txt", "GLX", "DRAM, GLB, RF"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "tensor.txt"], [["tensor.txt", "GLB D", "A, B, C"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "rank.txt"], [["rank.txt", "rank z", "m, n, k"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "tile.txt"], [["tile.txt", "rank m", "tile 2", "tile 1"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "words.txt"], [["words.txt", "line 4", "for n tiles 1"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "dim.txt"], [["dim.txt", "over Q", "X, Y"]]),
    (
        ["simulate", "gemm:m=4,n=4,k=4", "a3", "open.txt"],
        [["open.txt", "line 6", '"mca"', "mac stands last"]],
    ),
    (
        ["simulate", "gemm:m=4,n=4,k=4", "a3", "absent.txt"],
        [["absent.txt", "cannot be read as a mapping (No such file or directory)"]],
    ),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "blank.txt"], [["blank.txt", "empty"]]),
    (["simulate", "gemm:m=4,n=4,k=4", "a3", "wide.txt"], [["wide.txt", "tile 9", "take 1 to 4"]]),
    (["simulate", "resnet50", "a3", "level.txt"], [["level.txt", "einsum of the workload", "conv1"]]),
    (["run", "absent.yaml"], [["absent.yaml", "No such file"]]),
    (["run", "aimless.yaml"], [["aimless.yaml", "objectives is missing"]]),
    (["run", "metric.yaml"], [["metric.yaml", "objectives[0]", "energie", "energy_pj?"]]),
    (["run", "template.yaml"], [["template.yaml", "edge_aray", "edge_array"]]),
    (["run", "void.yaml"], [["void.yaml", "space.array.x", "no machine", "at least one"]]),
    (["run", "field.yaml"], [["field.yaml", "space.array.z", "array.y?"]]),
    (["run", "minus.yaml"], [["minus.yaml", "space.gbuf.capacity", "-4 KiB", "at least 1"]]),
    (["run", "size.yaml"], [["size.yaml", "space.gbuf.capacity", "4 KB", "KiB"]]),
    (["run", "swapped.yaml"], [["swapped.yaml", "space.array.x", "8", "4", "swap"]]),
    (["run", "nobody.yaml"], [["nobody.yaml", "area_mm2 <= 0.0001", "no machine", "relax"]]),
    (["run", "term.yaml"], [["term.yaml", "constraints[0]", "aera_mm2", "area_mm2?"]]),
    (["run", "word.yaml"], [["word.yaml", "constraint", "constraints?"]]),
    (["run", "unbuilt.yaml"], [["unbuilt.yaml", "area_mm2 <= 0.0001", "no machine", "relax"]]),
    (["run", "unquoted.yaml"], [["workloads[0]", "quote", '["gemm:m=64,n=32,k=48"]']]),
    (["run", "torn.yaml"], [["workloads[0]", "quote", '{workload: "gemm:m=64,n=32,k=48"}']]),
    (["run", "objectivs.yaml"], [["objectivs", "did you mean objectives?"]]),
    (["check", "clock.yaml"], [["clock_mz", "did you mean clock_mhz?"]]),
    (["check", "nods.yaml"], [["nods", "did you mean nodes?"]]),
    (["run", "double.yaml"], [["double.yaml", "line 1", "name stands twice"]]),
    (["run", "gem.yaml"], [["gem.yaml", "workloads[0]", "gem", "gemm?"]]),
    (["run", "folder.yaml"], [["folder.yaml", "a/b", "use letters"]]),
    (["run", "ok.yaml", "--set", "stop.machnes=5"], [["ok.yaml", "stop.machnes", "machines?"]]),
    (["run", "ok.yaml", "--set", "nonsense"], [["ok.yaml", "--set nonsense", "write --set"]]),
    (["run", "ok.yaml", "--workers", "-1"], [["--workers", "-1", "0 or more"]]),
    (
        ["run", "ok.yaml", "--workers", "0", "--out", "run", "--set", "solver.objective=latency"],
        [["run", "solver.objective", "energy", "latency", "give another --out"]],
    ),
    (["resume", "nowhere"], [["nowhere", "no run", "dse run"]]),
    (["status", "nowhere"], [["nowhere", "no run", "dse run"]]),
    (["pareto", "nowhere"], [["nowhere", "no run", "dse run"]]),
    (["show", "nowhere", "best"], [["nowhere", "no run", "dse run"]]),
    (["show", "run", "99"], [["99", "0 to 3"]]),
    (["map", GEMM, "negative.yml"], [["negative.yml", "did you mean negative.yaml?"]]),
    (
        ["map", "ok_machine.yaml", "ok_net.yaml"],
        [["ok_machine.yaml is a machine", "second; write ok_net.yaml"]],
    ),
    (["map", "edge_array", "resnet18"], [["edge_array is a machine", "write resnet18 edge_array"]]),
    (["simulate", "edge_array", GEMM, "ok.txt"], [["edge_array is a machine", f"write {GEMM} edge_array"]]),
    (["show", "run", "bst"], [["POINT = bst", "did you mean best?"]]),
    (["show", "run", "first"], [["POINT = first", "best"]]),
    (["show", "run", "-1"], [["POINT = -1", "best"]]),
    (["show", "run", "0.9"], [["POINT = 0.9", "no schedule 9", "0.0"]]),
    (["show", "run", "0", "--einsum", "other"], [["--einsum other", "gemm"]]),
    (["pareto", "run", "--objectives", "energy"], [['"energy"', "energy_pj?"]]),
    (["pareto", "run", "--objectives", "foo"], [['"foo"', "energy_pj, latency_cycles, latency_ns"]]),
    (["pareto", "run", "--objectives", "certificate"], [['"certificate"', "no number", "energy_pj"]]),
    (["pareto", "run", "--where", "speed > 1"], [["--where speed > 1", "speed", "not found"]]),
    (["pareto", "run", "--where", "area_mm2 <"], [["--where area_mm2 <", "syntax error"]]),
    (["pareto", "run", "--where", "1) or (1=1"], [["--where 1) or (1=1", "syntax error"]]),
    (["pareto", "run", "--where", "1 group by 1"], [["--where 1 group by 1", "syntax error"]]),
    (["sql", "run", "pragma database_list"], [["PRAGMA", "refused"]]),
    (["sql", "run", "DROP TABLE machines"], [["DROP", "refused", "SELECT"]]),
    (["sql", "run", "DELETE FROM machines"], [["DELETE", "refused"]]),
    (["sql", "run", "COPY machines TO 'x.csv'"], [["COPY", "refused"]]),
    (["sql", "run", "SELECT 1; SELECT 2"], [["2 statements", "exactly one"]]),
    (["sql", "run", "selec"], [["write SELECT for selec"]]),
    (["sql", "run", "SELECT nope FROM machines"], [["nope", "Candidate"]]),
    (["sql", "run", "SELECT * FROM read_csv('/etc/hostname')"], [["read_csv", "refused"]]),
    (["check", "broken.yaml"], [["broken.yaml", "line 2", "no YAML"]]),
    (["check", "list.yaml"], [["list.yaml", "no machine", "no study", "no workload"]]),
    (["check", "empty.yaml"], [["empty.yaml", "no machine"]]),
    (["check", "doubled.yaml"], [["doubled.yaml", "extents stands twice"]]),
    (["check", "notes.txt"], [["notes.txt", ".yaml"]]),
    (
        ["check", "absent.yaml", "unit.yaml", "ok.yaml", "metric.yaml"],
        [["absent.yaml"], ["unit.yaml", "128 KB"], ["metric.yaml", "energie"]],
    ),
    (["list", "colours"], [["colours", "did you mean columns?"]]),
    ([], [["COMMAND", "--help"]]),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all faulty files, and a run."""
    folder = tmp_path_factory.mktemp("inputs")
    for base, changed in ((EDGE, MACHINES), (STUDY, STUDIES), (NEST, NESTS)):
        for name, (old, new) in changed.items():
            assert old in base
            (folder / name).write_text(base.replace(old, new))
    for name, text in (OTHERS | {"ok.yaml": STUDY}).items():
        (folder / name).write_text(text)
    whole = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    (folder / "cut.onnx").write_bytes(whole.read_bytes()[:3000])
    _save(
        folder / "symbol.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["N", 16], "w": [16, 8]},
        {"y": ["N", 8]},
    )
    ring = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    _save(folder / "cycle.onnx", ring, {"x": [2, 2]}, {"b": [2, 2]})
    good("run", "ok.yaml", "--workers", "0", "--out", "run", folder=folder)
    return folder


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
) -> None:
    made, read = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in some.items()]
        for some in (outputs, inputs)
    )
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", read, made)), path)


@pytest.mark.parametrize(("command", "lines"), BROKEN, ids=lambda x: " ".join(map(str, x))[:70])
def test_each_fault_is_one_clear_line(inputs: Path, command: list[str], lines: list[list[str]]) -> None:
    done = dse(*command, folder=inputs)
    said = done.stderr.splitlines()
    assert done.returncode == 2
    assert len(said) == len(lines), said
    assert all(part in line for line, parts in zip(said, lines, strict=True) for part in parts), said


@pytest.mark.parametrize(("out", "why"), [("/proc/nowhere", "No such file"), ("ok.yaml", "Not a directory")])
def test_a_folder_that_cannot_be_made_promises_nothing(inputs: Path, out: str, why: str) -> None:
    done = dse("run", "ok.yaml", "--workers", "0", "--out", out, folder=inputs)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert out in said
    assert why in said
    assert "--out" in said
    assert "committed" not in said


@pytest.mark.parametrize(
    "command",
    some(
        [
            ["map", "resnet51", "edge_array"],
            ["run", "metric.yaml", "--workers", "2"],
            ["check", "many.yaml"],
            ["sql", "run", "DROP VIEW points"],
        ],
        1,
        2,
    ),
)
def test_the_installed_command_says_no_more(inputs: Path, command: list[str]) -> None:
    said = subprocess.run([DSE, *command], cwd=inputs, capture_output=True, text=True, timeout=300)
    assert said.returncode == 2
    assert said.stdout == ""
    assert "Traceback" not in said.stderr
    assert len(said.stderr.splitlines()) == (4 if "many.yaml" in command else 1)
