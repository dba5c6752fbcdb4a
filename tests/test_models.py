"""Files as users bring them, one small ONNX graph per way in which one was costed wrongly; real exports: make
prove PART=models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nph

from dse.frontend import check
from dse.study import study as studies
from dse.study.read import StudyError
from tests.onnx_graphs import Build
from workloads.einsum import WorkloadError
from workloads.graph import Workload, warning, with_bits
from workloads.onnx import load

MS = "com.microsoft"


def products(w: Workload) -> list[int]:
    return [
        e.macs() * n for e, n in zip(w.einsums, w.repeats or [1] * len(w.einsums), strict=True) if e.macs()
    ]


def typed(b: Build, name: str, type: int, *shape: int) -> str:
    b.init.append(helper.make_tensor(name, type, shape, [0] * int(np.prod(shape))))
    return name


def file(tmp_path: Path, model: onnx.ModelProto, name: str = "net.onnx") -> Path:
    onnx.save(model, tmp_path / name)
    return tmp_path / name


# Another batch


def heads(batch: int, first: str) -> onnx.ModelProto:
    """A classification token, attention, a head; all shapes are constants with the batch built in. first:
    dimension that is the batch or the sequence.
    """
    b = Build(17)
    s, w, h = 6, 12, 3
    x = b.add("Concat", b.const(batch, 1, w), "x", axis=1)
    x = b.add("Transpose", x, perm=[1, 0, 2]) if first == "sequence" else x
    length = s + 1
    shape, perm = (
        ((length, batch * h, w // h), [1, 0, 2])
        if first == "sequence"
        else ((batch, length, h, w // h), [0, 2, 1, 3])
    )
    q, k, v = (
        b.add("Transpose", b.add("Reshape", b.add("MatMul", x, b.const(w, w)), b.ints(*shape)), perm=perm)
        for _ in range(3)
    )
    y = b.add(
        "MatMul",
        b.add(
            "Softmax",
            b.add(
                "MatMul", q, b.add("Transpose", k, perm=[0, 2, 1] if first == "sequence" else [0, 1, 3, 2])
            ),
        ),
        v,
    )
    y = b.add("Transpose", y, perm=[1, 0, 2] if first == "sequence" else [0, 2, 1, 3])
    flat = b.add("Gemm", b.add("Reshape", y, b.ints(batch * length, w)), b.const(w, w))
    rows = b.add(
        "Reshape", flat, b.ints(*((length, batch, w) if first == "sequence" else (batch, length, w)))
    )
    picked = b.add("Gather", rows, b.ints(0), axis=0 if first == "sequence" else 1)
    return b.model({"x": (batch, s, w)}, [b.add("MatMul", picked, b.const(w, 5))])


@pytest.mark.parametrize("first", ["batch", "sequence"])
@pytest.mark.parametrize(("written", "wanted"), [(1, 4), (4, 1), (2, 6)])
def test_a_built_in_batch_is_replaced_everywhere(first: str, written: int, wanted: int) -> None:
    found, built = load(heads(written, first), batch=wanted), load(heads(wanted, first))
    assert products(found) == products(built)
    assert [e.output.stored_elems() for e in found.einsums] == [
        e.output.stored_elems() for e in built.einsums
    ]
    # the token is stored once per sample that was exported
    assert found.parameters == (built.parameters - wanted * 12 + written * 12)


def test_constant_indices_of_samples_grow_with_the_batch() -> None:
    b = Build(17)
    rows = b.add("Reshape", b.ints(0), b.ints(1, 1))  # sample 0: one index per sample
    picked = b.add("GatherND", "x", b.add("Concat", rows, "ids", axis=1))
    w = load(b.model({"x": (1, 5, 8), "ids": (1, 1)}, [b.add("MatMul", picked, b.const(8, 3))]), batch=4)
    assert w.macs() == 4 * 8 * 3


@pytest.mark.parametrize(
    ("op", "attrs", "why"),
    [("ReduceMean", {"axes": [0]}, "ReduceMean"), ("Squeeze", {}, "Squeeze"), ("Mystery", {}, "Mystery")],
)
def test_what_cannot_be_rebound_is_refused_by_name(op: str, attrs: dict[str, Any], why: str) -> None:
    b = Build(11)
    y = b.add(op, "x", domain="my" if op == "Mystery" else "", **attrs)
    model = b.model({"x": (1, 4)}, [y])
    # must not be believed
    model.graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, (1, 4)))
    with pytest.raises(WorkloadError, match=f"batch = 3: {why} .*export the model with batch 3"):
        load(model, batch=3)


def test_declared_shapes_are_not_believed_at_another_batch() -> None:
    b = Build(17)
    h = b.add("MatMul", b.add("FusedMatMul", "x", b.const(8, 4), domain=MS, transB=1), b.const(8, 3))
    model = b.model({"x": (1, 5, 4)}, [h])
    model.graph.value_info.extend(
        helper.make_tensor_value_info(t, TensorProto.FLOAT, (1, 5, n)) for t, n in (("t0", 8), ("t1", 3))
    )
    assert products(load(model, batch=4)) == [4 * 5 * 8 * 4, 4 * 5 * 8 * 3]


# No product for free


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("ways", [1, 2])
def test_recurrent_layers(op: str, gates: int, ways: int) -> None:
    b, (steps, batch, wide, hidden) = Build(17), (9, 2, 5, 7)
    rows = b.add(
        op,
        "x",
        b.const(ways, gates * hidden, wide),
        b.const(ways, gates * hidden, hidden),
        b.const(ways, 2 * gates * hidden),
        hidden_size=hidden,
        direction="bidirectional" if ways == 2 else "forward",
    )
    w = load(b.model({"x": (steps, batch, wide)}, [rows]))
    assert products(w) == [
        steps * batch * ways * gates * hidden * wide,
        steps * batch * ways * gates * hidden * hidden,
    ]
    assert w.parameters == ways * gates * hidden * (wide + hidden + 2)
    assert not w.unknown
    assert products(load(b.model({"x": (steps, batch, wide)}, [rows]))) == products(w)


def test_operators_of_onnxruntime() -> None:
    def macs(
        op: str,
        inputs: list[str],
        shapes: dict[str, tuple[int, ...]],
        b: Build,
        outputs: int = 1,
        **attrs: Any,
    ) -> list[int]:
        out = b.add(op, *inputs, domain=MS, outputs=outputs, **attrs)
        w = load(b.model(shapes, [out]))
        assert not w.unknown, op
        return products(w)

    b = Build(17)
    assert macs(
        "FusedMatMul", ["x", "y"], {"x": (2, 3, 5, 4), "y": (2, 3, 6, 4)}, b, transB=1, alpha=0.5
    ) == [2 * 3 * 5 * 4 * 6]
    b = Build(17)
    assert macs("FusedMatMul", ["x", "y"], {"x": (4, 5), "y": (4, 6)}, b, transA=1) == [4 * 5 * 6]
    b = Build(17)
    assert macs(
        "FusedMatMul", ["x", "y"], {"x": (5, 6, 4), "y": (7, 6, 4)}, b, transBatchA=1, transBatchB=1, transB=1
    ) == [6 * 5 * 4 * 7]
    b = Build(17)
    assert macs(
        "FusedConv",
        ["x", b.const(6, 3, 3, 3)],
        {"x": (1, 3, 8, 8)},
        b,
        activation="Relu",
        kernel_shape=[3, 3],
    ) == [6 * 36 * 27]
    b = Build(17)
    assert (
        macs("Attention", ["x", b.const(8, 24), b.const(24)], {"x": (2, 5, 8)}, b, num_heads=2)
        == [2 * 5 * 8 * 8] * 3 + [2 * 5 * 5 * 8] * 2
    )
    b = Build(17)
    assert (
        macs("MultiHeadAttention", ["x", "y", "y"], {"x": (2, 5, 8), "y": (2, 7, 8)}, b, num_heads=2)
        == [2 * 5 * 7 * 8] * 2
    )
    b = Build(17)
    assert (
        macs(
            "GroupQueryAttention",
            ["x", "y", "y"],
            {"x": (2, 5, 16), "y": (2, 5, 8)},
            b,
            num_heads=4,
            kv_num_heads=2,
        )
        == [2 * 5 * 5 * 16] * 2
    )
    b = Build(17)
    packed = ["x", typed(b, "w", TensorProto.UINT8, 6, 1, 16), b.const(6)]
    assert macs("MatMulNBits", packed, {"x": (3, 32)}, b, K=32, N=6, bits=4, block_size=32) == [3 * 32 * 6]
    b = Build(17)
    assert macs(
        "DynamicQuantizeMatMul", ["x", typed(b, "w", TensorProto.INT8, 4, 6), b.const(1)], {"x": (3, 4)}, b
    ) == [3 * 4 * 6]
    b = Build(17)
    assert macs("GemmFastGelu", ["x", b.const(4, 6)], {"x": (3, 4)}, b) == [3 * 4 * 6]
    b = Build(17)
    assert (
        macs("SkipLayerNormalization", ["x", "y", b.const(4), b.const(4)], {"x": (3, 4), "y": (3, 4)}, b)
        == []
    )


@pytest.mark.parametrize(
    ("equation", "shapes", "macs"),
    [
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), 120),
        ("...ij,jk->...ik", ((2, 7, 3, 4), (4, 5)), 2 * 7 * 60),
        ("ij,jk", ((3, 4), (4, 5)), 60),
        ("bhqd,bkhd->bhqk", ((2, 3, 4, 5), (2, 6, 3, 5)), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_einsums(equation: str, shapes: tuple[tuple[int, ...], ...], macs: int) -> None:
    b = Build(17)
    w = load(b.model({"x": shapes[0], "y": shapes[1]}, [b.add("Einsum", "x", "y", equation=equation)]))
    assert w.macs() == macs
    assert not w.unknown


def mystery(tmp_path: Path) -> Path:
    """An operator that nobody knows, beside a product."""
    b = Build(17)
    y = b.add("Mystery", b.add("MatMul", "x", b.const(4, 4)), domain="my")
    model = b.model({"x": (1, 4)}, [y])
    model.graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, (1, 12)))
    return file(tmp_path, model)


def test_what_could_multiply_is_told(tmp_path: Path) -> None:
    w = load(mystery(tmp_path))
    assert w.unknown == ("Mystery_n1",)
    assert warning(w) == (
        "net: 1 unknown operators count as data movement, without the MACs that they may have: "
        "Mystery_n1; they write 75 % of all elements"
    )
    line, _ = check.file(str(tmp_path / "net.onnx"))
    types, warned = line.splitlines()[1:3]
    assert types.startswith("types: float32 counts as the machine's word")
    assert warned.startswith("warning: net: 1 unknown operators")
    b = Build(17)
    # it only chooses
    assert not warning(load(b.model({"x": (4, 4)}, [b.add("TopK", "x", b.ints(2), outputs=2)])))


STUDY = """
workloads: [{file: net.onnx}]
machine: edge_array
space: {array.x: [8, 16]}
objectives: [energy_pj]
"""


def test_a_sweep_refuses_what_could_multiply(tmp_path: Path) -> None:
    mystery(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    with pytest.raises(
        StudyError, match=r"workloads: net: 1 unknown operators .* write unknown: movement to count them"
    ):
        studies.load(tmp_path / "study.yaml")
    assert studies.load(tmp_path / "study.yaml", ["unknown=movement"]).loaded_workloads[0].unknown
    with pytest.raises(StudyError, match='unknown = "products" must be error or movement'):
        studies.load(tmp_path / "study.yaml", ["unknown=products"])


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_on_a_constant_is_taken(taken: bool) -> None:
    def branch(name: str, wide: int) -> onnx.GraphProto:
        w = nph.from_array(np.zeros((4, wide), np.float32), "w")
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name)],
            name,
            [],
            [helper.make_empty_tensor_value_info("y")],
            [w],
        )

    b = Build(17)
    b.init.append(nph.from_array(np.array(taken), "c"))
    out = b.add("If", "c", then_branch=branch("then", 3), else_branch=branch("other", 7))
    w = load(b.model({"x": (2, 4)}, [b.add("Relu", out)]))
    assert w.macs() == 2 * 4 * (3 if taken else 7)
    assert w.parameters == 4 * (3 if taken else 7)


# Types


def bits(w: Workload) -> list[list[int | None]]:
    return [[p.bits for p in e.tensors()] for e in w.einsums if e.kind == "mac"]


def test_quantised_tensors_cost_their_bits() -> None:
    """QDQ: weights and what lies between the products are of 8 bits; the last result, which nothing
    quantises, is a float of 32.
    """
    b = Build(17)

    def q(x: str) -> str:
        return b.add("DequantizeLinear", b.add("QuantizeLinear", x, b.const(), zero), b.const(), zero)

    zero = typed(b, "zero", TensorProto.INT8)
    weight = b.add("DequantizeLinear", typed(b, "w8", TensorProto.INT8, 6, 3, 3, 3), b.const(), zero)
    y = q(b.add("Relu", b.add("Conv", q("x"), weight, b.const(6))))
    head = b.add(
        "MatMul",
        b.add("Reshape", y, b.ints(1, -1)),
        b.add("DequantizeLinear", typed(b, "v8", TensorProto.INT8, 216, 4), b.const(), zero),
    )
    w = load(b.model({"x": (1, 3, 8, 8)}, [head]))
    assert bits(w) == [[8, 8, 8], [8, 8, 32]]
    assert w.parameters == 6 * 27 + 6 + 216 * 4
    assert [e.kind for e in w.einsums] == ["quantizelinear", "mac", "mac"]
    assert w.einsums[0].inputs[0].bits == 32


def test_operators_on_integers_are_8_bits() -> None:
    """A residual block of onnxruntime's QOperator form: convolution, addition, pool, product."""
    b = Build(17)
    one, zero = b.const(), typed(b, "zero", TensorProto.INT8)
    x = b.add("QuantizeLinear", "x", one, zero)
    y = b.add("QLinearConv", x, one, zero, typed(b, "w8", TensorProto.INT8, 3, 3, 1, 1), one, zero, one, zero)
    y = b.add("QLinearAdd", x, one, zero, y, one, zero, one, zero, domain=MS)
    y = b.add("QLinearGlobalAveragePool", y, one, zero, one, zero, domain=MS)
    y = b.add(
        "QGemm",
        b.add("Flatten", y),
        one,
        zero,
        typed(b, "v8", TensorProto.INT8, 3, 5),
        one,
        zero,
        typed(b, "sum", TensorProto.INT32, 5),
        one,
        zero,
        domain=MS,
    )
    w = load(
        b.model(
            {"x": (2, 3, 4, 4)},
            [
                b.add(
                    "QLinearMatMul",
                    y,
                    one,
                    zero,
                    typed(b, "u8", TensorProto.INT8, 5, 6),
                    one,
                    zero,
                    one,
                    zero,
                )
            ],
        )
    )
    assert products(w) == [2 * 9 * 16, 2 * 3 * 5, 2 * 5 * 6]
    assert not w.unknown
    assert w.parameters == 9 + 15 + 5 + 30
    assert {p.bits for e in w.einsums for p in e.tensors()} == {8, 32}
    assert [p.bits for e in w.einsums for p in e.tensors()].count(32) == 1
    b = Build(17)
    turned = [typed(b, "w8", TensorProto.INT8, 1, 5, 28), typed(b, "r8", TensorProto.INT8, 1, 7, 28)]
    inputs = ["x", *turned, "", "", "", "", "", b.const(1), zero_of(b), b.const(1), "zero"]
    w = load(b.model({"x": (9, 2, 5)}, [b.add("DynamicQuantizeLSTM", *inputs, domain=MS, hidden_size=7)]))
    assert products(w) == [9 * 2 * 28 * 5, 9 * 2 * 28 * 7]
    assert bits(w)[0][1] == 8


def zero_of(b: Build) -> str:
    return typed(b, "zero", TensorProto.INT8)


def test_integer_products_sum_in_32_bits() -> None:
    b = Build(17)
    x, scale, zero = (b.add("DynamicQuantizeLinear", "x", outputs=3) + c for c in ("", "b", "c"))
    y = b.add("MatMulInteger", x, typed(b, "w8", TensorProto.INT8, 4, 5), zero)
    w = load(b.model({"x": (3, 4)}, [b.add("Mul", b.add("Cast", y, to=TensorProto.FLOAT), scale)]))
    assert bits(w) == [[8, 8, 32]]
    assert w.parameters == 20


def test_float_networks_are_words_of_the_machine_unless_their_types_differ() -> None:
    def built(second: int) -> onnx.ModelProto:
        b = Build(17)
        x = b.add("MatMul", "x", b.const(4, 4))
        y = b.add("MatMul", b.add("Cast", x, to=second), typed(b, "w", second, 4, 4))
        return b.model({"x": (3, 4)}, [y])

    assert bits(load(built(TensorProto.FLOAT))) == [[None] * 3] * 2
    assert bits(load(built(TensorProto.FLOAT16))) == [[32, 32, 16], [16, 16, 16]]


def test_bits_of_a_study(tmp_path: Path) -> None:
    b = Build(17)
    y = b.add("MatMul", b.add("MatMul", "x", b.const(4, 4)), b.const(4, 4))
    w = load(file(tmp_path, b.model({"x": (3, 4)}, [y])))
    assert bits(with_bits(w, {"weights": 4, "activations": 16, "t0": 8})) == [[16, 4, 8], [8, 4, 16]]
    with pytest.raises(WorkloadError, match="net: bits names tt0, which is no tensor; do you mean t0"):
        with_bits(w, {"tt0": 8})
    (tmp_path / "study.yaml").write_text(
        STUDY.replace("{file: net.onnx}", "{file: net.onnx, bits: {weights: 4}}")
    )
    study = studies.load(tmp_path / "study.yaml")
    assert bits(study.loaded_workloads[0]) == [[None, 4, None]] * 2
    plain = studies.load(tmp_path / "study.yaml", ["workloads=[{file: net.onnx}]"])
    assert studies.identity(study) != studies.identity(plain)
    run = tmp_path / "run"
    for name, content in studies.files(study).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    assert studies.identity(studies.load(run / "study.yaml")) == studies.identity(study)
    with pytest.raises(StudyError, match=r"workloads\[0\].bits = .* must give whole numbers"):
        studies.load(tmp_path / "study.yaml", ["workloads=[{file: net.onnx, bits: {weights: big}}]"])


# Counts, and how files are named


def test_scales_masks_and_angles_are_no_parameters() -> None:
    b = Build(17)
    b.init.append(nph.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    b.init.append(nph.from_array(np.zeros((8, 8), bool), "mask"))
    up = b.add("Resize", b.add("Conv", "x", b.const(3, 3, 1, 1)), "", "scales", mode="nearest")
    w = load(b.model({"x": (1, 3, 4, 4)}, [b.add("Where", "mask", up, b.const())]))
    assert w.parameters == 9


def test_check_takes_parameters_of_a_file(tmp_path: Path) -> None:
    b = Build(17)
    path = file(tmp_path, b.model({"x": ("N", 3, "h", "h")}, [b.add("Conv", "x", b.const(2, 3, 1, 1))]))
    line, layers = check.file(f"{path}:N=2,h=5")
    assert f"{2 * 25 * 3 * 2} MACs" in line
    assert layers[0].macs == 300
    with pytest.raises(
        WorkloadError,
        match=r'size of symbol "h" is not bound; bind it, e.g. net.onnx:h=1, or bind: {h: 1} in a study',
    ):
        load(path, {"N": 2})
