"""Files as they come: older operator sets, empty optional inputs, dimensions without a name, types and
attributes of other tools, loops, transforms, inputs whose value decides.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx import numpy_helper as nph

from dse.frontend import api, check
from tests.onnx_graphs import FLOAT, Build
from workloads import catalog
from workloads.einsum import Einsum, Projection, WorkloadError
from workloads.facts import reason
from workloads.graph import counts, types_text, warnings, with_bits
from workloads.onnx import load

REPORTED = Path(__file__).parent / "data" / "reported"
RIGHT = {  # file and what it is bound to: MACs
    "unsqueeze_opset11.onnx:N=2": 2 * 4 * 64 * 27 + 2 * 10 * 256,
    "resize_empty_roi.onnx": 4 * 64 * 27 + 4 * 4 * 256,
    "two_anonymous_dims.onnx:x[2]=8,x[3]=6": 4 * 48 * 27,
    "stft_window_only.onnx": 128_640,
    "conv_int8_types.onnx": 4 * 64 * 27,
    "einsum_bilinear.onnx": 2_880,
    "scan_matmul.onnx": 10 * 1_024,
    "deformconv.onnx": 13_824,
}


@pytest.mark.parametrize("name", RIGHT)
def test_reported_files_multiply_as_they_say(name: str) -> None:
    w = catalog.load(str(REPORTED / f"onnx_{name}"))
    assert w.macs() == RIGHT[name]
    assert not w.unknown
    assert len(warnings(w)) == name.startswith("conv_int8")


def test_dimensions_without_a_name_are_told_apart_by_their_place() -> None:
    with pytest.raises(WorkloadError) as caught:
        load(REPORTED / "onnx_two_anonymous_dims.onnx")
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        f'size of symbol "x[{i}]" is not bound; bind it, e.g. onnx_two_anonymous_dims.onnx:x[{i}]=1, '
        f'or bind: {{"x[{i}]": 1}} in a study'
        for i in (2, 3)
    ]


@pytest.mark.parametrize(
    ("op", "given", "attrs"),
    [
        ("Unsqueeze", (), {"axes": [0]}),
        ("Slice", (9, 24, 9), {"starts": [1], "ends": [2]}),
        ("Squeeze", (24,), {"axes": [0]}),
    ],
)
def test_shapes_are_computed_in_the_operator_set_of_the_file(
    op: str, given: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    """Axes are attributes up to operator set 12, those of Slice up to 9."""
    b = Build(9)
    b.init.append(nph.from_array(np.array(given or 24, np.int64), "v"))
    made = b.add(op, "v", **attrs)
    shape = b.add(
        "Concat", b.add("Unsqueeze", made, axes=[0]) if op == "Squeeze" else made, b.ints(1), axis=0
    )
    (e,) = load(b.model({"x": (4, 6)}, [b.add("Relu", b.add("Reshape", "x", shape))])).einsums
    assert e.output.stored_elems() == 24
    assert len(e.extents) == 1


def test_what_the_standard_does_not_know_is_a_warning() -> None:
    """Types of numbers change no shape, an attribute of another tool no count; an operand that does not fit
    is a fault as ever.
    """
    b = Build(14)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, (2, 3))
    node = helper.make_node("MatMul", ["x", b.const(3, 4)], ["y"], "n", vendor=3)
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", FLOAT, None)], b.init)
    w = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10), name="net")
    assert w.macs() == 24
    assert list(w.warnings) == [
        "net: MatMul n: attribute vendor: the standard has none of that name for MatMul; it is left out",
        "net: MatMul n: x tensor(float16), w0 tensor(float): types that the standard does not allow "
        "for MatMul; counted as they are",
    ]


@pytest.mark.parametrize(
    ("kind", "bits", "said"),
    [
        (TensorProto.FLOAT, None, "float32 counts as the machine's word (8 bit here)"),
        (TensorProto.FLOAT16, 16, "float16 counts as 16 bit"),
        (TensorProto.DOUBLE, None, "float64 counts as the machine's word (8 bit here)"),
    ],
)
def test_bits_of_the_types_of_a_file_are_said(kind: int, bits: int | None, said: str, tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info(n, kind, s) for n, s in (("x", (2, 3)), ("w", (3, 4)), ("y", (2, 4)))
    ]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:2], values[2:])
    path = tmp_path / "net.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10
        ).SerializeToString()
    )
    found = api.map(str(path), "edge_array")
    assert {p.bits for e in found.workload.einsums for p in e.tensors()} == {bits}
    assert re.search(rf"^types +{re.escape(said)}$", found.text(), re.MULTILINE)
    assert f"\ntypes: {said.removesuffix(' (8 bit here)')}" in check.file(str(path))[0]
    assert types_text(with_bits(found.workload, {"activations": 4}), 8) == ""  # bits of a study overrule them


# Loops


def step(kind: str, growing: bool = False) -> GraphProto:
    """A body: state times weights, its activation out; of a Scan it adds a slice."""
    weights = nph.from_array(np.zeros((4, 8 if growing else 4), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["s_out"]),
        helper.make_node("Tanh", ["s_out"], ["y"]),
    ]
    state, out = (
        helper.make_tensor_value_info("s", FLOAT, (2, 4)),
        [helper.make_tensor_value_info(n, FLOAT, None) for n in ("s_out", "y")],
    )
    if kind == "Scan":
        nodes[0] = helper.make_node("Add", ["s", "x_t"], ["a"])
        nodes.insert(1, helper.make_node("MatMul", ["a", "w"], ["m"]))
        return helper.make_graph(
            nodes, "body", [state, helper.make_tensor_value_info("x_t", FLOAT, (2, 4))], out, [weights]
        )
    nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    given = [
        helper.make_tensor_value_info("i", TensorProto.INT64, ()),
        helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        state,
    ]
    return helper.make_graph(
        nodes, "body", given, [helper.make_tensor_value_info("on", TensorProto.BOOL, ()), *out], [weights]
    )


def looped(kind: str, trips: int | None, growing: bool = False) -> ModelProto:
    count = [nph.from_array(np.array(trips, np.int64), "trips")] if trips is not None else []
    inputs = [helper.make_tensor_value_info("s0", FLOAT, (2, 4))]
    if kind == "Scan":
        inputs.append(helper.make_tensor_value_info("x", FLOAT, (trips, 2, 4)))
        nodes = [
            helper.make_node("Sigmoid", ["x"], ["z"]),
            helper.make_node("Scan", ["s0", "z"], ["last", "ys"], "loop", body=step(kind), num_scan_inputs=1),
        ]
    else:
        inputs += [] if count else [helper.make_tensor_value_info("trips", TensorProto.INT64, ())]
        nodes = [
            helper.make_node("Loop", ["trips", "", "s0"], ["last", "ys"], "loop", body=step(kind, growing))
        ]
    outputs = [
        helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("last", (2, 4)), ("ys", (trips or 5, 2, 4)))
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, count if kind == "Loop" else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("kind", "trips"), [("Scan", 1), ("Scan", 7), ("Loop", 1), ("Loop", 9)])
def test_a_body_runs_as_often_as_it_is_said(kind: str, trips: int) -> None:
    """What it reads from the einsum before stays needed; the state, which the next trip reads, is stored, so
    nothing is fused onto it.
    """
    model = looped(kind, trips)
    del model.graph.output[0]  # the last state
    w = load(model)
    own = [(e.kind, n) for e, n in zip(w.einsums, counts(w), strict=True)]
    assert own == [
        *([("sigmoid", 1), ("add", trips)] if kind == "Scan" else []),
        ("mac", trips),
        ("tanh", trips),
    ]
    assert w.macs() == trips * 2 * 4 * 4
    assert not w.unknown
    assert w.parameters == 16


def test_a_loop_of_unknown_trips_is_no_count_of_one() -> None:
    assert load(looped("Loop", None)).unknown == ("loop", "Loop_ys")


def test_a_state_that_grows_is_refused() -> None:
    with pytest.raises(
        WorkloadError,
        match=r"net: Loop loop: its state loop/s_out changes from \[2, 4\] to \[2, 8\] in a trip; unroll "
        r"it on export",
    ):
        load(looped("Loop", 3, growing=True))


def test_taps_of_a_deformed_convolution_are_read_with_their_offsets() -> None:
    """Two groups of offsets and a mask: every operand is read, whole."""
    b = Build(19)
    y = b.add("DeformConv", "x", b.const(6, 4, 3, 3), "o", "", "m", offset_group=2, pads=[1, 1, 1, 1])
    w = load(b.model({"x": (1, 4, 8, 8), "o": (1, 36, 8, 8), "m": (1, 18, 8, 8)}, [y]))
    (e,) = w.einsums
    assert w.macs() == 6 * 64 * 36
    assert {p.tensor: p.stored_elems() for p in e.inputs} == {"x": 256, "w0": 216, "o": 2304, "m": 1152}


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ((4, 9), "is declared as [4, 9], and its operators make [4, 8]"),
        ((4, 8, 1), "is declared as [4, 8, 1], and its operators make [4, 8]"),
        ((), "is declared as [], and its operators make [4, 8]"),
        (("N", 5), "is declared as [N, 5], and its operators make [4, 8]"),
        ((4, 8), ""),
        ((4, -1), ""),
        (("N", 0), ""),
        (None, ""),
    ],
)
def test_a_result_that_is_declared_in_another_shape_is_one_line(
    told: tuple[int | str, ...] | None, line: str, tmp_path: Path
) -> None:
    """It was passed over in silence; a size of another batch is one of the file's own."""
    build = Build()
    end = build.add("Relu", build.add("MatMul", "x", build.const(6, 8)))
    model = build.model({"x": (4, 6)}, [])
    model.graph.output.append(helper.make_tensor_value_info(end, FLOAT, told))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    for batch in (None, 7):
        found = warnings(load(tmp_path / "net.onnx", batch=batch))
        assert [line in one and "output t1 of Relu n1 " in one for one in found] == [True] * bool(line)


@pytest.mark.parametrize(("told", "lines"), [((4, 8), 0), (("N", 8), 0), (None, 0), ((4, 9), 1), ((8,), 1)])
def test_a_tensor_between_operators_that_is_declared_in_another_shape_is_one_line(
    told: tuple[int | str, ...] | None, lines: int
) -> None:
    """As a result is; names that no operator makes say nothing."""
    build = Build()
    between = build.add("MatMul", "x", build.const(6, 8))
    model = build.model({"x": (4, 6)}, [build.add("Relu", between)])
    model.graph.value_info.extend(helper.make_tensor_value_info(t, FLOAT, told) for t in (between, "nobody"))
    for batch in (None, 7):
        found = [line.split(": ", 1)[1] for line in load(model, batch=batch).warnings]
        shape = ", ".join(map(str, told or ()))
        line = (
            f"tensor t0 of MatMul n0 is declared as [{shape}], and its operators make [4, 8], which "
            "counts; export the file again"
        )
        assert found == [line] * lines


@pytest.mark.parametrize(
    ("shape", "line"), [((8, 3), ""), ((5, 7), "Reshape n0: x [4, 6] has 24 elements, t0 [5, 7] 35")]
)
def test_a_reshape_keeps_the_elements(shape: tuple[int, int], line: str, tmp_path: Path) -> None:
    build = Build()
    seen = build.add("Reshape", "x", "to")
    end = build.add("MatMul", seen, build.const(shape[1], 2))
    model = build.model({"x": (4, 6)}, [end])
    model.graph.initializer.append(nph.from_array(np.array(shape, np.int64), "to"))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    if not line:
        assert [e.points() for e in load(tmp_path / "net.onnx").einsums] == [8 * 3 * 2]
        return
    with pytest.raises(WorkloadError) as fault:
        load(tmp_path / "net.onnx")
    assert line in str(fault.value)


def test_a_file_in_which_nothing_computes_is_one_line(tmp_path: Path) -> None:
    build = Build()
    model = build.model({"x": (4, 8)}, [build.add("Identity", "x")])
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(WorkloadError, match="has no einsum: nothing in it computes or moves data"):
        catalog.load(str(tmp_path / "net.onnx"))


# Values of inputs


def by_rate() -> ModelProto:
    """An If on an input of one number: 16000 takes the branch of 4 x 8 x 6 MACs, else that of 4 x 8 x 3."""
    b = Build(17)
    branches = {}
    for name, filters in (("then_branch", 6), ("else_branch", 3)):
        weights = nph.from_array(np.zeros((8, filters), np.float32), f"w_{name}")
        nodes = [helper.make_node("MatMul", ["x", weights.name], [f"y_{name}"])]
        results = [helper.make_tensor_value_info(f"y_{name}", FLOAT, None)]
        branches[name] = helper.make_graph(nodes, name, [], results, [weights])
    b.init.append(nph.from_array(np.array(16000, np.int64), "rate"))
    taken = b.add("If", b.add("Equal", "sr", "rate"), **branches)
    model = b.model({"x": (4, 8), "ids": ()}, [taken])
    model.graph.input[1].name = "sr"
    return model


@pytest.mark.parametrize(("rate", "filters"), [(16000, 6), (8000, 3), (0, 3)])
def test_a_bound_value_takes_its_branch(rate: int, filters: int) -> None:
    w = load(by_rate(), {"sr": rate})
    assert w.macs() == 4 * 8 * filters
    assert not w.unknown
    assert {p.tensor for e in w.einsums for p in e.inputs}.isdisjoint({"sr"})


@pytest.mark.parametrize(
    ("bind", "line"),
    [
        ({}, "it depends on the value of input sr; bind it, e.g. g:sr=1, or bind: {sr: 1} in a study"),
        ({"sr": 1.5}, "bind sr = 1.5 must be a whole number that input sr can be"),
        (
            {"x": 3},
            "bind x = 3 would be the value of input x [4, 8]; only an input of one number has a value",
        ),
        ({"s": 3}, 'bind names "s", which no input has; symbols are: none, all sizes are given'),
    ],
)
def test_a_value_that_is_missing_or_wrong_is_one_line(bind: dict[str, Any], line: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(by_rate(), bind)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_branch_whose_shape_is_declared_says_what_to_bind() -> None:
    """Its operators are not known, so it is data movement: with a warning that says why."""
    model = by_rate()
    model.graph.output[0].type.tensor_type.shape.CopyFrom(
        helper.make_tensor_type_proto(FLOAT, (4, 6)).tensor_type.shape
    )
    w = load(model)
    assert w.unknown == ("If_n1",)
    assert any("If n1: it depends on the value of input sr; bind it" in line for line in w.warnings)


def test_a_shape_may_depend_on_a_bound_value() -> None:
    b = Build(17)
    best = b.add("TopK", "x", "ids", outputs=2)
    model = b.model({"x": (1, 8), "ids": (1,)}, [b.add("MatMul", best, b.const(3, 5))])
    assert load(model, {"ids": 3}).macs() == 3 * 5
    assert load(model, {"ids": 3}, batch=7).macs() == 7 * 3 * 5
    with pytest.raises(WorkloadError, match=r"the value of input ids; bind it, e\.g\. g:ids=1"):
        load(model)


# Transforms


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "constants", "attrs", "want"),
    [
        # one-sided: 201 bins of 400 samples, each of which is read once
        ("DFT", 17, {"x": (2, 400, 1)}, {}, {"axis": 1, "onesided": 1}, [("dft", 2 * 201 * 2, {"x": 800})]),
        ("DFT", 17, {"x": (2, 400, 1)}, {}, {"axis": 1}, [("dft", 2 * 400 * 2, {"x": 800})]),
        ("DFT", 20, {"x": (2, 400, 1)}, {"n": 512}, {"onesided": 1}, [("dft", 2 * 257 * 2, {"x": 800})]),
        ("DFT", 20, {"x": (2, 9, 3, 2)}, {}, {"inverse": 1}, [("dft", 2 * 9 * 3 * 2, {"x": 108})]),
        (
            "STFT",
            17,
            {"x": (2, 1600, 1)},
            {"step": 160, "": 0, "length": 400},
            {},
            [("copy", 2 * 8 * 400, {"x": 2 * 1520}), ("dft", 2 * 8 * 201 * 2, {"n0_frames": 6400})],
        ),
        (
            "STFT",
            17,
            {"x": (1, 1600, 2), "w": (400,)},
            {"step": 160},
            {"onesided": 0},
            [("mul", 8 * 400 * 2, {"x": 3040, "w": 400}), ("dft", 8 * 400 * 2, {"n0_frames": 6400})],
        ),
    ],
)
def test_a_transform_reads_its_samples_once_and_multiplies_nothing(
    op: str,
    opset: int,
    inputs: dict[str, tuple[int, ...]],
    constants: dict[str, int],
    attrs: dict[str, Any],
    want: list[Any],
) -> None:
    b = Build(opset)
    b.init += [nph.from_array(np.array(v, np.int64), k) for k, v in constants.items() if k]
    signal, *window = inputs
    model = b.model(inputs, [b.add(op, signal, *list(constants)[:1], *window, *list(constants)[1:], **attrs)])
    w = load(model)
    found = [
        (e.kind, e.output.stored_elems(), {p.tensor: touched(e, p) for p in e.inputs}) for e in w.einsums
    ]
    assert found == want
    assert not w.unknown
    assert w.macs() == w.parameters == 0


def touched(e: Einsum, p: Projection) -> int:
    """Stored elements that the accesses of an einsum span."""
    sizes = e.sizes()
    return prod(min(d.offset + d.hull(sizes), d.size) - max(d.offset, 0) for d in p.dims)


def test_a_window_is_not_trained() -> None:
    w = catalog.load(str(REPORTED / "onnx_stft_window_only.onnx"))
    assert w.parameters == 201 * 80


def test_a_one_sided_transform_of_complex_numbers_is_refused() -> None:
    b = Build(17)
    b.init.append(nph.from_array(np.array(160, np.int64), "step"))
    model = b.model({"x": (2, 400, 2)}, [b.add("STFT", "x", "step", b.const(400), onesided=1)])
    with pytest.raises(
        WorkloadError, match=r"STFT n0: .*takes real numbers, not complex ones \[2, 1, 400, 2\]"
    ):
        load(model)


# Empty pieces


def rolled(b: Build, shift: int, rows: int = 6) -> str:
    """The tensor x with its rows rolled, as exporters write it: two slices and a Concat."""
    head = b.add("Slice", "x", b.ints(rows - shift), b.ints(rows), b.ints(0))
    tail = b.add("Slice", "x", b.ints(0), b.ints(rows - shift), b.ints(0))
    return b.add("Concat", b.add("Relu", head), tail, axis=0)


@pytest.mark.parametrize("shift", [0, 2])
def test_an_empty_piece_of_a_concat_does_nothing(shift: int) -> None:
    b = Build(13)
    model = b.model({"x": (6, 4)}, [b.add("MatMul", rolled(b, shift), b.const(4, 5))])
    w = load(model)
    assert w.macs() == 6 * 4 * 5
    copies = sum(e.output.stored_elems() for e in w.einsums if e.kind == "copy")
    assert copies == (2 * 4 + 4 * 4 + 6 * 4 if shift else 6 * 4)
    made = {e.output.tensor for e in w.einsums}
    assert {p.tensor for e in w.einsums for p in e.inputs} - made == {"x", "w6"}


@pytest.mark.parametrize("op", ["MatMul", "Slice"])
def test_an_empty_operand_or_result_is_refused(op: str) -> None:
    """A size is too small then, such as the image of a convolution."""
    b = Build(13)
    end = nothing = b.add("Slice", "x", b.ints(6), b.ints(6), b.ints(0))
    if op == "MatMul":
        end = b.add("Concat", b.add("MatMul", nothing, b.const(5, 5)), b.add("Relu", "x"), axis=0)
    model = b.model({"x": (6, 5)}, [end])
    with pytest.raises(WorkloadError, match=r"is empty; bind sizes of at least 1"):
        load(model)


# Loops that end on a condition


def while_below(start: int, end: int | None, step: int, most: int | None, data: bool = False) -> ModelProto:
    """`while i < end: state = relu(state x weights); i += step`, at most so many trips. data: i comes from
    an input.
    """
    weights = nph.from_array(np.zeros((4, 4), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["s_out"]),
        helper.make_node("Add", ["i", "step"], ["i_out"]),
        helper.make_node("Less", ["i_out", "end_in"], ["on"]),
        helper.make_node("Identity", ["end_in"], ["end_out"]),
    ]
    kinds = {"n": TensorProto.INT64, "go": TensorProto.BOOL, "i": TensorProto.INT64}
    given = [helper.make_tensor_value_info(k, v, ()) for k, v in kinds.items()]
    given += [
        helper.make_tensor_value_info("s", FLOAT, (2, 4)),
        helper.make_tensor_value_info("end_in", TensorProto.INT64, ()),
    ]
    out = [
        ("on", TensorProto.BOOL),
        ("i_out", TensorProto.INT64),
        ("s_out", FLOAT),
        ("end_out", TensorProto.INT64),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        given,
        [helper.make_tensor_value_info(n, k, None) for n, k in out],
        [weights, nph.from_array(np.array(step, np.int64), "step")],
    )
    b = Build(17)
    numbers = {"start": start, "end": end, "most": most}
    b.init += [nph.from_array(np.array(v, np.int64), k) for k, v in numbers.items() if v is not None]
    first = b.add("Cast", b.add("ReduceMax", "x", keepdims=0), to=TensorProto.INT64) if data else "start"
    b.nodes.append(
        helper.make_node(
            "Loop",
            ["most" if most is not None else "", b.add("Less", first, "end"), first, "x", "end"],
            ["i_last", "last", "e_last"],
            "loop",
            body=body,
        )
    )
    return b.model({"x": (2, 4)}, [b.add("Tanh", "last")])


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("most", [None, 1, 5, 100])
def test_a_loop_runs_until_its_condition_ends_it(start: int, step: int, most: int | None) -> None:
    trips, i = 0, start
    while i < 12 and (most is None or trips < most):
        trips, i = trips + 1, i + step
    w = load(while_below(start, 12, step, most))
    assert w.macs() == trips * 2 * 4 * 4
    assert not w.unknown


@pytest.mark.parametrize("data", [False, True])
def test_a_condition_on_data_or_without_end_is_not_guessed(data: bool) -> None:
    model = while_below(0, 12, 1 if data else 0, None, data)
    with pytest.raises(WorkloadError, match=r"Loop loop: the shape of last is not known: it depends on data"):
        load(model)


# Messages


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("LRN", ((1, 8, 6, 6),)),
        ("MaxPool", ((1, 8, 6, 6),)),
        ("Concat", ((2, 3), (2, 3))),
        ("Attention", ((1, 4, 16),) * 3),
        ("RotaryEmbedding", ((1, 4, 16), (8, 4), (8, 4))),
        ("Einsum", ((2, 3), (3, 4))),
        ("SpaceToDepth", ((1, 4, 4, 4),)),
        ("Split", ((4, 6),)),
        ("Cast", ((4,),)),
        ("BatchNormalization", ((1, 4, 2),)),
        ("DeformConv", ((1, 8, 6, 6),)),
        ("GRU", ((5, 1, 3),)),
    ],
)
@pytest.mark.parametrize("declared", [None, (1, 8, 6, 6)])
def test_an_operator_without_what_it_needs_is_a_sentence(
    op: str, shapes: tuple[tuple[int, ...], ...], declared: tuple[int, ...] | None
) -> None:
    b = Build(23)
    end = b.add(op, *(f"x{i}" for i in range(len(shapes))))
    model = b.model({f"x{i}": shape for i, shape in enumerate(shapes)}, [])
    model.graph.output.append(helper.make_tensor_value_info(end, FLOAT, declared))
    with pytest.raises(WorkloadError) as caught:
        load(model)
    assert re.fullmatch(rf"g: {op} n0: \S+( \S+){{4,}}", str(caught.value))


def test_what_an_exception_says_is_words() -> None:
    assert reason(KeyError("axis")) == "'axis' is missing"
    assert reason(IndexError()) == "IndexError"
    assert reason(ValueError("too  many\nvalues")) == "too many values"


def test_a_recurrent_layer_without_a_hidden_size_has_that_of_its_weights() -> None:
    b = Build(14)
    model = b.model({"x": (5, 2, 3)}, [b.add("LSTM", "x", b.const(1, 16, 3), b.const(1, 16, 4))])
    assert load(model).macs() == 5 * 2 * 16 * (3 + 4)
