"""Typical mistakes, a line each: what was written, and the key, value or name that the answer must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import db
from dse.run import record
from hw import machine
from tests.commands import dse
from tests.test_cli import STUDY

SETS = {  # on edge_array
    "gbuf.size=1MiB": "gbuf.capacity?",
    "gbuf.depth=4": "gbuf.capacity?",
    "gbuf.capacity=128KB": "128 KiB",
    "glb.capacity=1MiB": "gbuf.capacity?",
    "l2.capacity=1MiB": "gbuf.capacity?",
    "rf.size=64": "regf.capacity?",
    "hbm.bw=10": "dram.bandwidth?",
    "dram.type=lpddr5": "dram.kind?",
    "gbuf.read_energy=5": "gbuf.read_pj?",
    "gbuf.latency=2": "gbuf.cycle_ns?",
    "gbuf.double_buffering=no": "gbuf.double_buffer?",
    "pe.x=8": "array.x?",
    "array.rows=8": "array.y?",
    "array.cols=8": "array.x?",
    "array.width=8": "array.x?",
    "num_pes=256": "array.x or array.y?",
    "mac.precision=int8": "mac.kind?",
    "bits=8": "word_bits?",
    "freq=500": "clock_mhz?",
    "freq_mhz=500": "clock_mhz?",
    "array=8": "write one of its fields, e.g. array.x",
    "gbuf.capacity": "write --set gbuf.capacity=VALUE",
    "clock_ghz=1": "clock_mhz?",
    "technology=7nm": "node_nm?",
    "objective=latency": "solver.objective?",
    "mapper=random": "solver.mapper?",
    "dataflow=ws": "solver.dataflow?",
    "solver.objective=delay": "latency?",
    "solver.objective=power": "energy?",
    "solver.objective=throughput": "latency?",
    "solver.optimizer=exact": "mapper?",
    "solver.mapper=ilp": "optimal?",
    "solver.schedule=fusion": "fused?",
    "solver.schedule=pipeline": "pipelined?",
    "solver.fusion=true": "schedule?",
    "solver.dataflow=ws": "weight_stationary?",
    "solver.timeout=5": "limits.seconds?",
    "limits.timeout=5": "seconds?",
}
COMMANDS = {
    "map resnet edge_array": "resnet50 or resnet18",
    "map matmul:m=4,n=4,k=4 edge_array": "gemm?",
    "map conv2d edge_array": "conv?",
    "map gemm:M=4,n=4,k=4 edge_array": "parameters are m, n, k",
    "map gemm:batch=4 edge_array": "parameters are m, n, k",
    "map GEMM edge_array --objective delay": "latency?",
    "map GEMM tpu": "tpu_v4i?",
    "map edge_array GEMM": "the machine comes second",
    "map edge_array edge_array": "edge_array is a machine: the workload comes first",
    "map STUDIES/first.yaml edge_array": "is a study: the workload comes first",
    "map GEMM net.onnx": "net.onnx is a workload: the machine comes second",
    "plot GEMM edge_array loops": "use one of nest",
    "compare GEMM edge_array unfused fuse": "fused?",
    "check seed.yaml": "search.seed?",
    "map GEMM eyeris": "eyeriss?",
    "map GEMM edge_array --optimise x": "use one of --help, --format",
    "optimize GEMM": "map?",
    "explore study.yaml": "run?",
    "evaluate GEMM": "simulate?",
    "list networks": "workloads?",
    "list architectures": "machines?",
    "new accelerator": "machine?",
    "check timeout.yaml": "limits.seconds?",
    "check samples.yaml": "stop.machines?",
    "check metrics.yaml": "objectives?",
    "check architecture.yaml": "machine?",
    "check sampler.yaml": "search.method?",
}
CASES = [(f"map GEMM edge_array --set {text}", answer) for text, answer in SETS.items()]


@pytest.mark.parametrize(("command", "answer"), [*CASES, *COMMANDS.items()])
def test_a_typical_mistake_is_answered_by_the_right_name(command: str, answer: str, tmp_path: Path) -> None:
    named = command.replace("GEMM", "gemm:m=4,n=4,k=4").replace(
        "STUDIES", str(machine.MACHINES.parents[1] / "studies")
    )
    words = named.split()
    if words[0] == "check":
        key = words[1].removesuffix(".yaml")
        (tmp_path / words[1]).write_text(f"{STUDY}\n{key}: 5\n")
    said = dse(*words, folder=tmp_path)
    assert said.returncode == 2
    assert answer in said.stderr
    assert said.stderr.count("\n") == 1
    assert len(said.stderr) < 250


FILES = {  # in a machine, a workload or a study: what stands there -> what is written instead, and the answer
    ("machine", "500", "500 MHz"): 'clock_mhz = "500 MHz" must be a number, in MHz; write 500',
    ("machine", "128 KiB", "128KB"): 'write a number with B, KiB, MiB or GiB, e.g. "128 KiB"',
    ("machine", "{x: 16, y: 16}", "16x16"): "write e.g. {x: 16, y: 16}",
    ("machine", "int8", "INT8"): "int8?",
    ("machine", "lpddr4", "hbm"): "hbm3?",
    ("machine", "width_bits: 256", "width_bits: 256, bandwidth: 16"): '"12.8 GB/s"',
    ("workload", "+=", "="): "lacks rank k; write += to add up over it",
    ("workload", "k: 48", "k: 48.5"): "extents.k = 48.5 must be a whole number",
    ("workload", "[B]", "B"): "weights = 'B' must be a list",
    ("workload", ", k: 48", ""): "rank k of tensor A has no extent; known: m, n",
    ("workload", "C[m,n] += A[m,k] * B[k,n]", "mk,kn->mn"): 'write e.g. "C[m,n] += A[m,k] * B[k,n]"',
    ("study", "array.x: [2, 4, 8]", "array: {x: [2, 4, 8]}"): "write one of its fields, e.g. array.x",
    ("study", "array.x: [2, 4, 8]", "array.x: 8"): "write [8]",
    ("study", "[energy_pj,", "[energy,"): "energy_pj?",
    ("study", "space:", "array.y: 8\nspace:"): "a field of the machine: space.array.y = [8]",
    ("study", "space:", "constraints: [area < 1]\nspace:"): "area_mm2?",
    ("study", "space:", "constraints: [latency_ns < 1 ms]\nspace:"): "latency_ns < 1000000",
    ("study", "space:", "search: tpe\nspace:"): "write search: {method: ...}",
}
WORKLOAD = 'extents: {m: 64, n: 32, k: 48}\neinsums: ["C[m,n] += A[m,k] * B[k,n]"]\nweights: [B]\n'


@pytest.mark.parametrize(("mistake", "answer"), FILES.items())
def test_a_typical_mistake_in_a_file(mistake: tuple[str, str, str], answer: str, tmp_path: Path) -> None:
    kind, right, wrong = mistake
    edge = (machine.MACHINES / "edge_array.yaml").read_text()
    text = {"machine": edge, "workload": WORKLOAD, "study": STUDY}[kind]
    assert right in text
    (tmp_path / "wrong.yaml").write_text(text.replace(right, wrong, 1))
    said = dse("check", "wrong.yaml", folder=tmp_path)
    assert said.returncode == 2
    assert answer in said.stderr
    assert said.stderr.startswith("wrong.yaml: ")
    assert said.stderr.count("\n") == 1


def test_columns_are_found_by_meaning() -> None:
    columns = [*record.TABLES["points"]]
    assert db._column_meant("delay", columns) == "did you mean latency_ns?"
    assert db._column_meant("energy", columns) == "did you mean energy_pj?"


MACHINE = """clock_mhz: 800
node_nm: 22
nodes:
- {memory: dram, kind: lpddr4}
- {memory: l2, size: 512 KiB, width_bits: 128}
- {array: pe, rows: 16, cols: 16}
- {compute: mac, kind: int8}
"""


def test_files_of_an_architect_who_knows_other_tools(tmp_path: Path) -> None:
    (tmp_path / "npu.yaml").write_text(MACHINE)
    (tmp_path / "net.yaml").write_text("ranks: {m: 4}\neinsums: ['A[m] = relu(B[m])']\n")
    said = dse("check", "npu.yaml", "net.yaml", folder=tmp_path).stderr.splitlines()
    answers = [line.partition("; ")[2] for line in said]
    assert answers == [
        "add it, e.g. width_bits: 64",
        "did you mean capacity?",
        *["did you mean dims?"] * 2,
        "add it",
        "do you mean extents?",
    ]
