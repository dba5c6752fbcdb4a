"""Operands of every product operator agree, or the file is refused: each operand of a valid model, one
dimension made larger.

A model is written as the dimensions of its inputs: a name that stands twice is one size, one that ends in !
follows from attributes or other names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from onnx import ModelProto, TensorProto, helper

from workloads.einsum import WorkloadError
from workloads.onnx import load
from workloads.operands import RULES
from workloads.operators import PRODUCTS

FLOAT, U8, I8, I32, I64 = (
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.INT32,
    TensorProto.INT64,
)
SIZES = {
    "n": 2,
    "c": 4,
    "k": 6,
    "i": 8,
    "j": 9,
    "r": 3,
    "s": 3,
    "m": 5,
    "b": 2,
    "B": 3,
    "o": 7,
    "t": 7,
    "q": 5,
    "d": 4,
    "e": 6,
    "h": 4,
    "g": 2,
    "u": 10,
    "v": 11,
}
MS = "com.microsoft"


class Model(NamedTuple):
    """kind: of the one operator; dims: of its inputs; out: of its result; types: of inputs that are no
    floats, by place.
    """

    kind: str
    dims: tuple[str | None, ...]
    out: str
    attrs: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    types: dict[int, int] = {}
    domain: str = ""
    results: int = 1


QUANTISED = dict.fromkeys(range(9), U8)
SCALES = {1: FLOAT, 4: FLOAT, 6: FLOAT}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind: str, layout: int) -> Model:
    rows, state = ("n t i", "n D! h") if layout else ("t n i", "D! n h")
    dims = (rows, "D! G! i", "D! G! h!", "D! 2G!", "n", state, *((state, "D! 3h!") if kind == "LSTM" else ()))
    out = "n t D! h" if layout else "t D! n h"
    return Model(
        kind,
        dims,
        out,
        {"hidden_size": 4, "layout": layout},
        {"D": 1, "G": 4 * GATES[kind], "2G": 8 * GATES[kind], "3h": 12},
        {4: I32},
    )


MODELS = {
    "conv": Model("Conv", ("n c i j", "k c r s", "k"), "n k 6 7"),
    "conv with a kernel said": Model(
        "Conv", ("n c i j", "k c r! s!", "k"), "n k 6 7", {"kernel_shape": [3, 3]}
    ),
    "conv in groups": Model("Conv", ("n C! i j", "k! c! r s", "k"), "n k 6 7", {"group": 2}, {"C": 8}),
    "conv of one dimension": Model("Conv", ("n c i", "k c r"), "n k 6"),
    "conv of integers": Model("ConvInteger", ("n c i j", "k c r s"), "n k 6 7", types={0: U8, 1: U8}),
    "quantised conv": Model(
        "QLinearConv",
        ("n c i j", "", "", "k c r s", "", "", "", "", "k"),
        "n k 6 7",
        types={**QUANTISED, **SCALES, 8: I32},
    ),
    "transposed conv": Model("ConvTranspose", ("n c i j", "c k r s", "k"), "n k 10 11"),
    "transposed conv in groups": Model(
        "ConvTranspose", ("n c i j", "c! k! r s", "K!"), "n 12 10 11", {"group": 2}, {"K": 12}
    ),
    "deformed conv": Model(
        "DeformConv",
        ("n c i! j!", "k c r! s!", "n O! p q", "k", "n M! p q"),
        "n k p q",
        {},
        {"O": 18, "M": 9, "p": 6, "q": 7},
    ),
    "gemm": Model("Gemm", ("m k", "k u", "u"), "m u"),
    "gemm, all turned": Model("Gemm", ("k m", "u k", "m u"), "m u", {"transA": 1, "transB": 1}),
    "matmul": Model("MatMul", ("m k", "k u"), "m u"),
    "matmul of batches": Model("MatMul", ("B b m k", "b k u"), "B b m u"),
    "vector by matrix": Model("MatMul", ("k", "k u"), "u"),
    "matrix by vector": Model("MatMul", ("b m k", "k"), "b m"),
    "matmul of integers": Model("MatMulInteger", ("m k", "k u"), "m u", types={0: U8, 1: U8}),
    "quantised matmul": Model(
        "QLinearMatMul", ("m k", "", "", "k u", "", "", "", ""), "m u", types={**QUANTISED, **SCALES}
    ),
    "fused matmul": Model("FusedMatMul", ("b k m", "b u k"), "b m u", {"transA": 1, "transB": 1}, domain=MS),
    "fused matmul, rows first": Model(
        "FusedMatMul", ("m b k", "b k u"), "b m u", {"transBatchA": 1}, domain=MS
    ),
    "einsum": Model("Einsum", ("b m k", "b k u"), "b m u", {"equation": "bmk,bku->bmu"}),
    "einsum of batches": Model(
        "Einsum", ("B b m k", "B b k u"), "B b m u", {"equation": "...mk,...ku->...mu"}
    ),
    "einsum of three": Model("Einsum", ("b i", "i j k", "b k"), "b j", {"equation": "bi,ijk,bk->bj"}),
    **{f"{kind}, layout {layout}": recurrent(kind, layout) for kind in GATES for layout in (0, 1)},
    "attention": Model(
        "Attention", ("b H! q d", "b g! t d", "b g! t e", "q t!"), "b H! q e", {}, {"H": 4, "g": 2}
    ),
    "attention of rows": Model(
        "Attention",
        ("b q Q!", "b t K!", "b t V!"),
        "b q O!",
        {"q_num_heads": 4, "kv_num_heads": 2},
        {"Q": 16, "K": 8, "V": 12, "O": 24},
    ),
    "attention with a past": Model(
        "Attention",
        ("b H! q d", "b g t d", "b g t e", "", "b g s d", "b g s e"),
        "b H! q e",
        {},
        {"H": 4},
        results=3,
    ),
    "normalised": Model("LayerNormalization", ("n m c", "c", "c"), "n m c"),
    "batch norm": Model("BatchNormalization", ("n c i j", *["c"] * 4), "n c i j"),
    "microsoft conv": Model(
        "FusedConv", ("n c i j", "k c r s", "k"), "n k 6 7", {"activation": "Relu"}, domain=MS
    ),
    "microsoft gemm": Model("FusedGemm", ("m k", "k u", "u"), "m u", {"activation": "Relu"}, domain=MS),
    "microsoft attention": Model(
        "Attention", ("b t c", "c W!", "W!"), "b t 12", {"num_heads": 2}, {"W": 36}, domain=MS
    ),
    "microsoft heads": Model(
        "MultiHeadAttention",
        ("b q C!", "b t C!", "b t e!", "W!"),
        "b q e",
        {"num_heads": 2},
        {"C": 8, "e": 6, "W": 22},
        domain=MS,
    ),
    "grouped queries": Model(
        "GroupQueryAttention",
        ("b t Q!", "b t K!", "b t K!", "b H! s! d", "b H! s! d", "b", ""),
        "b t Q!",
        {"num_heads": 4, "kv_num_heads": 2},
        {"Q": 16, "K": 8, "H": 2},
        {5: I32, 6: I32},
        MS,
        3,
    ),
    "few bits": Model(
        "MatMulNBits",
        ("m K!", "u! 2! 16!", "S!"),
        "m u",
        {"K": 64, "N": 10, "bits": 4, "block_size": 32},
        {"K": 64, "2": 2, "16": 16, "S": 20},
        {1: U8},
        MS,
    ),
    "dynamic matmul": Model(
        "DynamicQuantizeMatMul", ("m k", "k u", "", "", "u"), "m u", types={1: I8, 3: I8}, domain=MS
    ),
    "integer matmul to float": Model(
        "MatMulIntegerToFloat",
        ("m k", "k u", "", "", "", "", "u"),
        "m u",
        types={0: U8, 1: U8, 4: U8, 5: U8},
        domain=MS,
    ),
    "quantised gemm": Model(
        "QGemm", ("m k", "", "", "k u", "", "", "u"), "m u", {}, {}, {0: U8, 2: U8, 3: U8, 5: U8, 6: I32}, MS
    ),
    "dynamic lstm": Model(
        "DynamicQuantizeLSTM",
        ("t n i", "D! i G!", "D! h! G!", "D! 2G!", "n", "D! n h", "D! n h"),
        "t D! n h",
        {"hidden_size": 4},
        {"D": 1, "G": 16, "2G": 32},
        {1: I8, 2: I8, 4: I32},
        MS,
    ),
}


def size(model: Model, name: str) -> int:
    bare = name.removesuffix("!")
    return model.sizes.get(bare, SIZES.get(bare, int(bare) if bare.isdigit() else 0))


def shapes(model: Model) -> list[list[int]]:
    return [[size(model, name) for name in (dims or "").split()] for dims in model.dims]


def written(model: Model, given: list[list[int]], declared: bool) -> ModelProto:
    names = [f"x{i}" if i in (0, 1, 2, 3) or model.dims[i] is not None else "" for i in range(len(given))]
    inputs = [
        helper.make_tensor_value_info(n, model.types.get(i, FLOAT), s)
        for i, (n, s) in enumerate(zip(names, given, strict=True))
        if n
    ]
    kind = (
        model.types.get(0, FLOAT)
        if model.kind.startswith("QLinear")
        else I32
        if model.kind.endswith("Integer")
        else FLOAT
    )
    out = [size(model, name) for name in model.out.split()] if declared else None
    results = ["y", *(f"y{i}" for i in range(1, model.results))]
    node = helper.make_node(model.kind, names, results, name="one", domain=model.domain, **model.attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, out)])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid(MS, 1)], ir_version=10
    )


def larger(model: Model) -> Iterator[tuple[int, int, bool]]:
    """Every dimension of every operand: (operand, dimension, does it stand in another place too)."""
    counts = Counter(name.removesuffix("!") for dims in model.dims for name in (dims or "").split())
    for at, dims in enumerate(model.dims):
        for axis, name in enumerate((dims or "").split()):
            yield at, axis, name.endswith("!") or counts[name] > 1


REPORTED = Path(__file__).parent / "data" / "reported"


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("matmul_inconsistent", "MatMul o: a [8, 400] and b [201, 80] do not fit: K is 400 and 201"),
        ("conv_inconsistent", "Conv o: a [1, 5, 8, 8], b [4, 3, 1, 1]: C is 5 and 3"),
    ],
)
def test_a_declared_result_mends_no_operands(file: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(REPORTED / f"onnx_{file}.onnx")
    assert str(caught.value).endswith(f"onnx_{file}.onnx: {fault}")


def test_a_rule_that_fails_is_a_fault_whatever_is_declared() -> None:
    """Of operators that have no rule here too, with the shapes that they read."""
    for kind, given, attrs in (
        ("Add", [[2, 3], [4, 3]], {}),
        ("Concat", [[2, 3], [2, 4]], {"axis": 0}),
        ("Softmax", [[2, 3]], {"axis": 5}),
    ):
        model = written(Model(kind, ("",) * len(given), "2 3", attrs), given, True)
        with pytest.raises(WorkloadError, match=rf"g: {kind} one: .*; it reads x0 \[2, 3\]"):
            load(model)


def test_a_spectrum_is_one_sided_unless_it_says_more() -> None:
    """201 of 400 points of a window: the default of the standard, which ONNX's own rule does not know."""
    assert load(REPORTED / "onnx_stft_window_only.onnx").macs() == 8 * 201 * 80


def test_every_product_is_here() -> None:
    kinds = {model.kind for model in MODELS.values()}
    assert kinds >= PRODUCTS | {"Einsum", "LSTM", "GRU", "RNN", "Attention", "DeformConv"}
    assert set(RULES) - kinds <= {"InstanceNormalization", "RMSNormalization", "PRelu"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("declared", [False, True])
def test_an_operand_that_does_not_fit_is_refused(name: str, declared: bool) -> None:
    """Whatever the file declares of the result; the fault names the operator and a shape. What nothing binds
    may be larger.
    """
    model = MODELS[name]
    load(written(model, shapes(model), declared))
    for at, axis, bound in larger(model):
        given = shapes(model)
        given[at][axis] += 1
        if bound:
            with pytest.raises(WorkloadError) as caught:
                load(written(model, given, declared))
                pytest.fail(f"{name}: operand {at} of shape {given[at]} was taken")
            assert re.search(r"one.*\[[0-9, ]*\]", str(caught.value)), str(caught.value)
        elif not declared:
            load(written(model, given, declared))
