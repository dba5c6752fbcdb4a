"""Exported programs against direct formulas, and against the same network as written in the catalog;
faults."""

from __future__ import annotations

import builtins
import pickle
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dse
from workloads import catalog
from workloads.einsum import WorkloadError, canonical_key
from workloads.torch import exported as exported_by
from workloads.torch import load


def exported(module: Any, *inputs: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.export.export(module.eval(), inputs)


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "torch":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(WorkloadError) as fault:
        catalog.load(str(tmp_path / "net.pt2"))
    assert str(fault.value) == f"{tmp_path / 'net.pt2'}: needs torch: pip install 'dse[torch]'"


class Module:
    """What a torch.nn.Module is to `dse.map`: a mode, and what torch.export makes of it."""

    training = True

    def eval(self) -> Module:
        self.training = False
        return self

    def train(self, mode: bool) -> None:
        self.training = mode


def test_a_module_is_exported_in_evaluation_mode_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def export(module: Module, inputs: tuple[Any, ...]) -> str:
        calls.append((module.training, inputs))
        if inputs == ("bad",):
            raise RuntimeError("control\n flow")
        return "program"

    class Program:
        pass

    spaces = {
        "export": SimpleNamespace(export=export, ExportedProgram=Program),
        "nn": SimpleNamespace(Module=Module),
    }
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**spaces))
    module, program = Module(), Program()
    assert exported_by(module, ["x"]) == "program"
    assert exported_by(program, ()) is program
    assert (calls, module.training) == ([(False, ("x",))], True)
    for wrong, inputs, words in (
        (module, ["bad"], "Module: torch.export refuses it (control flow)"),
        (module, [], "Module: inputs are missing; give e.g."),
        (3, ["x"], "int: is no workload; give a name"),
    ):
        with pytest.raises(WorkloadError, match=re.escape(words)):
            exported_by(wrong, inputs)
    assert module.training
    with pytest.raises(ValueError, match=r"inputs are of a torch\.nn\.Module"):
        dse.map("gemm:m=4,n=4,k=4", "a3", inputs=["x"])


def test_a_module_is_mapped_like_its_einsums() -> None:
    torch = pytest.importorskip("torch")
    mlp = torch.nn.Sequential(torch.nn.Linear(20, 30, bias=False), torch.nn.ReLU())
    found = dse.map(mlp, "edge_array", inputs=(torch.zeros(5, 20),))
    assert found.energy_pj == dse.map("gemm:m=5,n=30,k=20", "edge_array").energy_pj


def test_a_llama_block_is_mapped_as_it_is() -> None:
    """Grouped queries, rotary embeddings, root mean square norms, a gated feed-forward layer."""
    torch = pytest.importorskip("torch")
    found = dse.map(
        llama_block(torch, 64, 4, 2, 96),
        "edge_array",
        inputs=(torch.zeros(1, 8, 64),),
        **{"limits.seconds": 5},
    )
    kv, ffn = 2 * 16, 3 * 64 * 96
    assert found.workload.macs() == 8 * (2 * 64 * 64 + 2 * 64 * kv + ffn) + 2 * 4 * 8 * 8 * 16
    assert found.workload.parameters == 2 * 64 * 64 + 2 * 64 * kv + ffn + 2 * 64
    assert not found.workload.unknown
    assert found.energy_pj > 0


def llama_block(torch: Any, model: int, heads: int, groups: int, hidden: int) -> Any:
    """A decoder block as LLaMA has it, without its embedding."""
    nn, width = torch.nn, model // heads

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(model), nn.RMSNorm(model)
            self.q, self.o = (nn.Linear(model, model, bias=False) for _ in "qo")
            self.k, self.v = (nn.Linear(model, groups * width, bias=False) for _ in "kv")
            self.gate, self.up = (nn.Linear(model, hidden, bias=False) for _ in "gu")
            self.down = nn.Linear(hidden, model, bias=False)

        def turned(self, x: Any) -> Any:
            """Rotary position embedding: halves of a head turned by the angle of their position."""
            rate = 10_000.0 ** (-torch.arange(0, width, 2) / width)
            angle = torch.outer(torch.arange(x.shape[2]), rate)
            angle = torch.cat([angle, angle], -1)
            a, b = x.chunk(2, -1)
            return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            y = self.first(x)
            q, k, v = (part(y).view(b, t, -1, width).transpose(1, 2) for part in (self.q, self.k, self.v))
            y = nn.functional.scaled_dot_product_attention(
                self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
            )
            x = x + self.o(y.transpose(1, 2).reshape(b, t, model))
            y = self.second(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    return Block()


def test_a_program_file_has_one_parameter() -> None:
    with pytest.raises(WorkloadError, match="no parameter is named bach; do you mean batch"):
        catalog.load("net.pt2:bach=4")


@pytest.mark.parametrize("core", [False, True])
def test_mlp(core: bool) -> None:
    torch = pytest.importorskip("torch")
    mlp = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 7), torch.nn.Softmax(-1)
    )
    program = exported(mlp, torch.zeros(5, 20))
    w = load(program.run_decompositions() if core else program, "mlp")
    assert (w.name, w.macs(), w.parameters) == ("mlp", 5 * (20 * 30 + 30 * 7), 20 * 30 + 30 + 30 * 7 + 7)
    assert [e.kind for e in w.einsums if e.kind != "copy"] == ["mac", "mac", "softmax"]
    assert len(w.fused) == 1
    kinds = [e.kind for e in load(program, fuse_elementwise=False).einsums]
    assert kinds == ["mac", "relu", "mac", "softmax"]


def cnn(torch: Any) -> Any:
    nn = torch.nn

    class Cnn(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
            )
            self.depth = nn.Sequential(
                nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardtanh(0, 6)
            )
            self.point = nn.Conv2d(16, 12, 1, bias=False)
            self.head = nn.Linear(12, 10)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            x = torch.cat([x, x + self.depth(x)], 1)
            x = nn.functional.silu(self.point(nn.functional.avg_pool2d(x, 2)))
            return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))

    return Cnn()


@pytest.mark.parametrize("core", [False, True])
def test_cnn(core: bool) -> None:
    torch = pytest.importorskip("torch")
    program = exported(cnn(torch), torch.zeros(2, 3, 32, 32))
    w = load(program.run_decompositions() if core else program)
    products = [e.macs() for e in w.einsums if e.kind == "mac"]
    assert products == [2 * 8 * 16 * 16 * 3 * 9, 2 * 8 * 8 * 8 * 9, 2 * 12 * 4 * 4 * 16, 2 * 10 * 12]
    assert w.macs() == sum(products)
    assert w.parameters == sum(p.numel() for p in cnn(torch).parameters())
    assert [
        e.kind for e in w.einsums if e.kind in ("add", "max", "relu", "swish", "clip", "batchnormalization")
    ].count("max") == 1
    assert not [m for m in w.moved if "unknown" in m]
    # two normalisations, three activations; a decomposed silu is a sigmoid and a product
    assert len(w.fused) == 5 - core
    loose = {p.tensor for e in w.einsums for p in e.inputs} - {e.output.tensor for e in w.einsums} - w.weights
    assert loose == {"x"}


def test_vgg_equals_the_catalog_layer_by_layer() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    plan = [64, 64, 0, 128, 128, 0, *[256] * 3, 0, *[512] * 3, 0, *[512] * 3, 0]
    layers, depth = [], 3
    for filters in plan:
        layers += [nn.Conv2d(depth, filters, 3, 1, 1), nn.ReLU()] if filters else [nn.MaxPool2d(2)]
        depth = filters or depth
    with torch.device("meta"):
        w = load(exported(nn.Sequential(*layers), torch.zeros(1, 3, 224, 224)))
    convs, pools = sum(map(bool, plan)), plan.count(0)
    assert [e.kind for e in w.einsums].count("mac") == convs
    assert [e.kind for e in w.einsums].count("max") == pools
    assert [canonical_key(e) for e in w.einsums] == [
        canonical_key(e) for e in catalog.load("vgg16").einsums if e.kind in ("mac", "max")
    ][: len(w.einsums)]


def block(torch: Any, model: int, heads: int) -> Any:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, model)
            self.norm, self.qkv, self.out = (
                nn.LayerNorm(model),
                nn.Linear(model, 3 * model),
                nn.Linear(model, model),
            )
            self.ffn = nn.Sequential(
                nn.LayerNorm(model), nn.Linear(model, 4 * model), nn.GELU(), nn.Linear(4 * model, model)
            )

        def forward(self, ids: Any) -> Any:
            x = self.words(ids)
            b, t, _ = x.shape
            q, k, v = (
                self.qkv(self.norm(x))
                .reshape(b, t, 3, heads, model // heads)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, model))
            return x + self.ffn(x)

    return Block()


@pytest.mark.parametrize("core", [False, True])
def test_transformer_block(core: bool) -> None:
    torch = pytest.importorskip("torch")
    b, t, d = 2, 16, 32
    program = exported(block(torch, d, 4), torch.zeros(b, t, dtype=torch.int64))
    w = load(program.run_decompositions() if core else program)
    assert w.macs() == b * t * d * d * (3 + 1 + 8) + 2 * b * t * t * d
    assert w.parameters == 100 * d + 12 * d * d + 3 * d + d + 4 * d + d + 4 * d
    kinds = [e.kind for e in w.einsums]
    assert kinds.count("mac") == 6
    assert kinds.count("softmax") == 1
    assert kinds.count("layernormalization") == 2
    table = next(p for e in w.einsums for p in e.inputs if "words" in p.tensor)
    assert table.tensor in w.weights
    assert table.stored_elems() == 100 * d


def test_grouped_queries() -> None:
    torch = pytest.importorskip("torch")

    class Grouped(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    q, kv = torch.zeros(1, 8, 5, 16), torch.zeros(1, 2, 9, 16)
    w = load(exported(Grouped(), q, kv, kv, torch.zeros(5, 9)))
    assert [e.kind for e in w.einsums] == ["mac", "softmax", "mac"]
    assert w.macs() == 2 * 8 * 5 * 9 * 16
    assert [p.tensor for p in w.einsums[1].inputs][1:] == ["mask"]


def test_tied_weights_count_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.words(ids))

    program = exported(Tied(), torch.zeros(3, dtype=torch.int64))
    torch.export.save(program, tmp_path / "tied.pt2")
    assert (load(program).macs(), load(program).parameters, load(tmp_path / "tied.pt2").parameters) == (
        3 * 8 * 50,
        400,
        400,
    )


def test_what_is_not_known_is_named_and_moved() -> None:
    torch = pytest.importorskip("torch")

    class Odd(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.linalg.matrix_exp(x)[:, 1:3] * 2

    w = load(exported(Odd(), torch.zeros(6, 6)))
    assert w.macs() == 0
    assert w.moved == (
        "linalg_matrix_exp linalg_matrix_exp_linalg_matrix_exp (unknown operator)",
        "Slice Slice_slice_1",
    )
    assert w.einsums[-1].output.stored_elems() == 12


def test_sizes_must_be_fixed() -> None:
    torch = pytest.importorskip("torch")
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(4, 6),), dynamic_shapes=({0: batch},))
    with pytest.raises(
        WorkloadError, match=r"input has shape .*, 6]; export the program with fixed sizes"
    ) as fault:
        load(program)
    assert "\n" not in str(fault.value)


def test_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt2"
    torch.export.save(exported(cnn(torch), torch.zeros(2, 3, 32, 32)), path)
    w = catalog.load(str(path))
    assert w.name == "net"
    assert w.einsums == load(exported(cnn(torch), torch.zeros(2, 3, 32, 32))).einsums
    assert w.types == (("float32", None),)
    half = cnn(torch).to(torch.bfloat16)
    assert load(exported(half, torch.zeros(2, 3, 32, 32, dtype=torch.bfloat16))).types == (("bfloat16", 16),)
    assert len(catalog.load(str(path), fuse_elementwise=False).einsums) > len(w.einsums)
    assert catalog.load(f"train:net={path}").macs() > 2 * w.macs()
    whole = path.read_bytes()
    for damaged in (b"", b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(WorkloadError, match=r"net.pt2: not a program of torch.export.save") as fault:
            catalog.load(str(path))
        assert "\n" not in str(fault.value)
    with pytest.raises(WorkloadError, match=r"gone.pt2: cannot be read \(No such file or directory\); give"):
        load(tmp_path / "gone.pt2")


class Evil:
    """A pickle that runs code where it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


def test_a_program_file_that_holds_code_runs_none_of_it(tmp_path: Path) -> None:
    """Whatever entry it is in; torch.export.load alone runs what is in the sample inputs."""
    torch = pytest.importorskip("torch")
    torch.export.save(exported(torch.nn.Linear(3, 2), torch.ones(1, 3)), tmp_path / "good.pt2")
    evil = pickle.dumps(Evil(tmp_path / "ran"))
    with zipfile.ZipFile(tmp_path / "good.pt2") as good:
        entries = {name: good.read(name) for name in good.namelist()}
    for name in entries:
        with zipfile.ZipFile(tmp_path / "evil.pt2", "w") as bad:
            for other, data in entries.items():
                bad.writestr(other, evil if other == name else data)
        try:
            load(tmp_path / "evil.pt2")
        except WorkloadError as fault:
            assert "\n" not in str(fault)
        assert not (tmp_path / "ran").exists(), name


def test_a_program_file_whose_sizes_lie_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data/weights/w", bytes(200 << 20))
    with pytest.raises(WorkloadError, match="unpacks to more than 64 times its size"):
        load(tmp_path / "bomb.pt2")
