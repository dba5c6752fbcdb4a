"""Every entry of the catalog is solved on two machines, in a size that takes a moment; one that is added
without such a size fails. Of networks in files some layers of each kind are solved, all of them in full.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dse.explain.values import document
from dse.mapping.nest import Infeasible
from dse.sim.counts.counts import count
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from hw import machine
from tests.amount import FULL
from tests.test_catalog import SAMPLES
from workloads import catalog
from workloads.graph import Workload, contradictions, counts

REPORTED = Path(__file__).parent / "data" / "reported"
MACHINES = ("edge_array", "a2")  # fills wait; fills overlap, no registers
SMALL = {  # parameters; "" where the whole network is solved at once
    "alexnet": "image=67,classes=10",
    "vgg16": "image=32,classes=10",
    "vgg19": "image=32,classes=10",
    "googlenet": "image=64,classes=10",
    "resnet18": "image=32,classes=10",
    "resnet50": "image=32,classes=10",
    "resnet152": "image=32,classes=10",
    "squeezenet": "image=64,classes=10",
    "mobilenet_v1": "image=32,width=25,classes=10",
    "mobilenet_v2": "image=32,width=25,classes=10",
    "resnet3d18": "frames=2,image=16,classes=10",
    "unet": "image=188,width=4",
    "diffusion_block": "size=4,channels=32,text=4,heads=2",
    "mlp_s": "",
    "mlp_m": "",
    "mlp_l": "",
    "lstm": "inputs=8,hidden=8,layers=2",
    "lstm_phoneme": "",
    "lstm_gnmt": "",
    "lstm_showtell": "",
    "mamba_block": "sequence=8,model=16,state=4",
    "bert_base": "sequence=8,layers=1",
    "bert_tiny": "sequence=8",
    "tinybert": "sequence=8",
    "gpt2": "phase=decode,context=8,layers=1",
    "llama7b": "phase=decode,context=8,layers=1",
    "llama70b": "phase=prefill,context=8,layers=1",
    "moe_block": "phase=decode,context=8",
    "vit_b": "image=32",
    "gcn": "graph=cora,nodes=16,nnz=24,features=8,outputs=4",
    "gat": "nodes=16,nnz=24,features=8,outputs=4,hidden=2,heads=2",
    "sddmm": "matrix=random,rows=16,nnz=40,k=8",
    "spgemm": "matrix=random,rows=16,nnz=40",
    "graphsage": "nodes=16,nnz=24,features=8,outputs=4",
    "cg": "matrix=random,rows=16,nnz=40,iterations=2",
    "pipelined_cg": "matrix=random,rows=16,nnz=40,iterations=2",
    "s_step_cg": "matrix=random,rows=16,nnz=40,s=2,iterations=1",
    "ca_gmres": "matrix=random,rows=16,nnz=40,s=2,powers=kernel,iterations=1",
    "v_cycle": "matrix=random,rows=16,nnz=40,grids=2,interpolation=4,iterations=1",
    "bicgstab": "matrix=random,rows=16,nnz=40,iterations=2",
    "gmres": "matrix=random,rows=16,nnz=40,m=3",
    "spmm_chain": "matrix=random,rows=16,nnz=40,length=2",
    **dict.fromkeys(catalog.FILES, ""),
    "train": "net=mlp_s",
} | {name: given for name, (given, *_) in SAMPLES.items()}


def test_a_constant_index_is_one_row() -> None:
    workload, arch = catalog.load(str(REPORTED / "constant_index.yaml")), machine.arch(machine.load("a2"))
    found = solve(arch, workload, SolverOptions())
    assert not isinstance(found, Infeasible)
    rows = {
        (row.tensor, row.action): row.elems
        for row in count(found[0].einsums[0].mapping, workload.einsums[0], arch)
        if row.level == "DRAM"
    }
    assert rows == {("W", "read"): 64, ("words", "write"): 64}


def test_every_entry_has_a_small_size() -> None:
    assert set(catalog.names()) - set(SMALL) == set()


def part(workload: Workload) -> Workload:
    """The first and the last einsum of each kind and set of ranks."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, e in enumerate(workload.einsums):
        alike.setdefault((e.kind, *(rank for rank, _ in e.extents)), []).append(i)
    kept = sorted({i for same in alike.values() for i in (same[0], same[-1])})
    einsums, many = tuple(workload.einsums[i] for i in kept), counts(workload)
    return replace(workload, einsums=einsums, repeats=tuple(many[i] for i in kept))


@pytest.mark.parametrize("name", catalog.names())
def test_every_entry_is_mapped(name: str) -> None:
    workload = catalog.load(f"{name}:{SMALL[name]}" if SMALL[name] else name)
    assert not list(contradictions(workload.einsums))
    if name in catalog.FILES and not FULL:
        workload = part(workload)
    for chip in MACHINES if FULL else [MACHINES[catalog.names().index(name) % len(MACHINES)]]:
        arch = machine.arch(machine.load(chip))
        found = solve(arch, workload, SolverOptions())
        assert not isinstance(found, Infeasible), (chip, found)
        assert found[0].gap_to_bound >= 0
        assert document(arch, workload, found[0])["status"] == "ok"  # what `dse map --format json` prints
