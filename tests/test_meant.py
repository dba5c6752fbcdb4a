"""Typical mistakes, a line each: what was written, and the key, value or name that the answer must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import db
from dse.run import record
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
    "clock_ghz=1": "clock_mhz?",
    "technology=7nm": "node_nm?",
    "objective=latency": "solver.objective?",
    "mapper=random": "solver.mapper?",
    "dataflow=ws": "solver.dataflow?",
    "solver.objective=delay": "latency?",
    "solver.objective=power": "energy?",
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
    "map GEMM tpu": "tpu_edge?",
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
    words = command.replace("GEMM", "gemm:m=4,n=4,k=4").split()
    if words[0] == "check":
        key = words[1].removesuffix(".yaml")
        (tmp_path / words[1]).write_text(f"{STUDY}\n{key}: 5\n")
    said = dse(*words, folder=tmp_path)
    assert said.returncode == 2
    assert answer in said.stderr
    assert said.stderr.count("\n") == 1
    assert len(said.stderr) < 250


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
