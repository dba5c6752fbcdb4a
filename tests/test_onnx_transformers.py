"""What exports of transformers bring: Attention, norms, rotary positions, Gelu, Split, Slice, Gather; and a
model that equals a network function.
"""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper

from tests.amount import amount
from tests.onnx_graphs import FLOAT, Build
from workloads import catalog
from workloads.einsum import WorkloadError, compulsory_elems, show
from workloads.graph import Workload, unique
from workloads.onnx import load


def loaded(build: Build, inputs: dict[str, tuple[int, ...]], outputs: list[str]) -> Workload:
    return load(build.model(inputs, outputs))


def words(w: Workload) -> int:
    return sum(compulsory_elems(p, e.sizes()) for e in w.einsums for p in e.tensors())


@settings(max_examples=amount(60), deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["none", "constant", "rows", "heads"]),
)
def test_attention(
    b: int, kv: int, group: int, q: int, past: int, d: int, e: int, flat: bool, mask: str
) -> None:
    """Heads in a dimension of their own or beside the elements; grouped queries; a past that is joined to the
    new rows.
    """
    heads, t = kv * group, q + past
    build = Build(23)
    inputs = (
        {"q": (b, q, heads * d), "k": (b, q, kv * d), "v": (b, q, kv * e)}
        if flat
        else {"q": (b, heads, q, d), "k": (b, kv, q, d), "v": (b, kv, q, e)}
    )
    limits, slots = {"rows": (q, t), "heads": (b, heads, q, t)}.get(mask), ["q", "k", "v", ""]
    if limits:
        inputs["mask"], slots[3] = limits, "mask"
    elif mask == "constant":
        slots[3] = build.const(q, t)
    if past:
        inputs |= {"pk": (b, kv, past, d), "pv": (b, kv, past, e)}
        slots += ["pk", "pv"]
    attrs = {"q_num_heads": heads, "kv_num_heads": kv} if flat else {}
    y = build.add("Attention", *slots, outputs=3 if past else 1, **attrs)
    w = loaded(build, inputs, [y, "t0b", "t0c"] if past else [y])
    assert [x.kind for x in w.einsums] == ["copy"] * (2 if past else 0) + ["mac", "softmax", "mac"]
    assert w.parameters == 0
    assert w.macs() == b * heads * q * t * (d + e)
    joined = 2 * b * kv * t * (d + e) if past else 0
    scores = 4 * b * heads * q * t + (prod(limits) if limits else 0)
    assert words(w) == joined + scores + b * heads * q * (d + e) + b * kv * t * (d + e)
    assert len(w.moved) == (2 if past else 0)
    assert not w.weights


def test_keys_and_values_are_handed_on_as_a_cache() -> None:
    """ONNX finds no shapes for them without a past: files declare them."""
    build = Build(23)
    y = build.add("Attention", "q", "k", "v", outputs=3, q_num_heads=4, kv_num_heads=2)
    model = build.model({"q": (1, 6, 32), "k": (1, 6, 16), "v": (1, 6, 16)}, [y])
    model.graph.output.extend(helper.make_tensor_value_info(t, FLOAT, (1, 2, 6, 8)) for t in ("t0b", "t0c"))
    w = load(model)
    assert [e.kind for e in w.einsums] == ["mac", "softmax", "mac", "copy", "copy"]
    assert show(w.einsums[3]) == "t0b[c,p,q] = k[p,c,q]"
    assert w.einsums[0].sizes() == {"g": 2, "h": 2, "q": 6, "t": 6, "d": 8}


def test_norms_have_rows_and_what_they_hand_on() -> None:
    build = Build(23)
    build.add("LayerNormalization", "x", build.const(16), build.const(16), outputs=3)
    y = build.add("RMSNormalization", "t0", build.const(16))
    w = loaded(build, {"x": (2, 5, 16)}, [y, "t0b"])
    assert [e.kind for e in w.einsums] == ["layernormalization", "add", "rmsnormalization"]
    assert w.parameters == 48
    assert [e.output.stored_elems() for e in w.einsums] == [160, 10, 160]
    assert words(w) == (320 + 32) + 170 + (320 + 16)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("flat", [True, False])
def test_rotary_positions(interleaved: int, flat: bool) -> None:
    build = Build(23)
    shape, attrs = ((2, 7, 24), {"num_heads": 3}) if flat else ((2, 3, 7, 8), {})
    y = build.add(
        "RotaryEmbedding", "x", build.const(2, 7, 4), build.const(2, 7, 4), interleaved=interleaved, **attrs
    )
    w = loaded(build, {"x": shape}, [y])
    assert [e.kind for e in w.einsums] == ["rope"]
    assert not w.moved
    assert words(w) == 2 * prod(shape) + 2 * 2 * 7 * 4


def test_partly_rotated_positions_are_movement() -> None:
    build = Build(23)
    y = build.add("RotaryEmbedding", "x", build.const(2, 7, 2), build.const(2, 7, 2), rotary_embedding_dim=4)
    assert loaded(build, {"x": (2, 3, 7, 8)}, [y]).moved[0].startswith("RotaryEmbedding")


@pytest.mark.parametrize("exported", [True, False])
def test_gelu_rides(exported: bool) -> None:
    """As one operator it rides; as its formula it reads its input twice, so that the product and the error
    function stay apart.
    """
    build = Build(23)
    h = build.add("MatMul", "x", build.const(8, 16))
    if exported:
        y = build.add("Gelu", h)
    else:
        y = build.add(
            "Mul",
            build.add(
                "Mul",
                h,
                build.add("Add", build.add("Erf", build.add("Div", h, build.const(1))), build.const(1)),
            ),
            build.const(1),
        )
    w = loaded(build, {"x": (5, 8)}, [y])
    assert [e.kind for e in w.einsums] == (["mac"] if exported else ["mac", "div", "mul"])


def exported_block() -> ModelProto:
    build = Build(23)
    flat = build.add("Gemm", "x", build.const(16, 48), build.const(48))
    build.add("Split", flat, axis=-1, num_outputs=3, outputs=3)
    heads = [
        build.add("Transpose", build.add("Reshape", part, build.ints(1, 6, 4, 4)), perm=[0, 2, 1, 3])
        for part in ("t1", "t1b", "t1c")
    ]
    mask = build.add("Slice", build.const(32, 32), build.ints(0, 0), build.ints(6, 6))
    y = build.add(
        "Gemm",
        build.add(
            "Reshape",
            build.add("Transpose", build.add("Attention", *heads, mask), perm=[0, 2, 1, 3]),
            build.ints(6, 16),
        ),
        build.const(16, 16),
    )
    return build.model({"x": (6, 16)}, [y])


def test_one_product_for_queries_keys_and_values() -> None:
    """GPT-2's export: Gemm, Split into three, Slice of the causal mask, Attention on views."""
    w = load(exported_block())
    assert w.macs() == 6 * 16 * 48 + 2 * 6 * 6 * 16 + 6 * 16 * 16
    assert [e.kind for e in w.einsums] == ["mac", *["copy"] * 6, "mac", "softmax", "mac", "copy", "mac"]
    assert [show(e) for e in w.einsums if e.name.startswith("Split")] == [
        "t1[n,c] = t0[n,c]",
        "t1b[n,c] = t0[n,c+16]",
        "t1c[n,c] = t0[n,c+32]",
    ]


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "text"),
    [
        ((-4,), (99,), (-1,), None, "t0[n,c] = x[n,c+6]"),
        ((1, 2), (3, 9), None, None, "t0[n,c] = x[n+1,c+2]"),
        ((0,), (10,), (1,), (4,), "t0[n,c] = x[n,4*c]"),
    ],
)
def test_slices(
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
    text: str,
) -> None:
    build = Build(23)
    rest = (
        [build.ints(*axes) if axes else "", build.ints(*steps)]
        if steps
        else [build.ints(*axes)]
        if axes
        else []
    )
    w = loaded(
        build, {"x": (4, 10)}, [build.add("Slice", "x", build.ints(*starts), build.ints(*ends), *rest)]
    )
    assert [show(e) for e in w.einsums] == [text]


def test_gather_reads_its_rows_and_its_indices() -> None:
    build = Build(23)
    table = build.const(50, 8)
    # constant: adding them rides on the first gather
    positions = build.add("Gather", build.const(9, 8), build.ints(0, 1, 2, 3, 4))
    w = loaded(build, {"ids": (2, 5)}, [build.add("Add", build.add("Gather", table, "ids"), positions)])
    assert words(w) == 10 * 8 + 10 + 10 * 8
    assert w.parameters == 50 * 8 + 5 * 8
    assert len(w.fused) == 1


def test_faults_are_one_line() -> None:
    build = Build(23)
    y = build.add("Attention", "q", "k", "v")
    with pytest.raises(WorkloadError) as caught:
        loaded(build, {"q": (1, 6, 32), "k": (1, 6, 16), "v": (1, 6, 16)}, [y])
    assert "\n" not in str(caught.value)
    assert "Attention n0" in str(caught.value)


def test_equal_blocks_are_one_block() -> None:
    build, x = Build(23), "x"
    for _ in range(4):
        n = build.add("LayerNormalization", x, build.const(16), build.const(16))
        q, k, v = (build.add("MatMul", n, build.const(16, 16)) for _ in range(3))
        x = build.add(
            "Add",
            x,
            build.add(
                "MatMul", build.add("Attention", q, k, v, q_num_heads=4, kv_num_heads=4), build.const(16, 16)
            ),
        )
    w = loaded(build, {"x": (2, 6, 16)}, [x])
    assert w.macs() == 4 * 2 * (4 * 6 * 16 * 16 + 2 * 6 * 6 * 16)
    assert sorted(u.occurrences for u in unique(w)) == [4, 4, 4, 4, 4, 16]


def test_damaged_files_load_or_say_why_not(tmp_path: Path) -> None:
    """Flipped bytes and cut ends, in a file with Attention, Split and Slice and in a shipped one: a workload,
    or clear lines; nothing else.
    """
    rng, path, refused = random.Random(0), tmp_path / "net.onnx", 0
    sources = [exported_block().SerializeToString(), (catalog.LIGHT / "light_squeezenet.onnx").read_bytes()]
    for i in range(300):
        data = bytearray(sources[i % 2])
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if i % 5 == 0 else data)
        try:
            load(path)
        except WorkloadError as fault:
            refused += 1
            assert all(line.startswith(f"{path}: ") for line in str(fault).split("\n"))
    assert 30 < refused < 300
