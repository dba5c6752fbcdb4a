"""Files as they come: older operator sets, empty optional inputs, dimensions without a name, types and
attributes of other tools, loops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx import numpy_helper as nph

from tests.onnx_graphs import FLOAT, Build
from workloads import catalog
from workloads.einsum import WorkloadError
from workloads.graph import counts, warnings
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
    assert not w.unknown or name.startswith("stft")
    assert len(warnings(w)) == name.startswith(("conv_int8", "stft"))


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
