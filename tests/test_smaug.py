"""SMAUG's optimizers: published tiles, invariants on random operators, known defects shown and gone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dse.mapper.smaug import smaug
from dse.mapper.smaug.factor import Unit, enumerate_tiles, minimum_tile, strategy
from dse.mapper.smaug.schedule import calls, traffic
from dse.mapper.smaug.smaug import Operator, Tiling, same_padding, tile
from dse.mapping.nest import Infeasible
from tests import operators
from tests.amount import amount
from tests.cases import run as run_cases
from tests.tiled import broken, wrong

CASES = Path(__file__).parent / "data" / "smaug_tiling_cases.json"
SMV = Unit()


def tiling(op: Operator, faithful: bool = False, u: Unit = SMV) -> Tiling:
    found = tile(op, u, faithful)
    assert isinstance(found, Tiling), found
    return found


def conv(shape: tuple[int, ...], k: int, m: int, stride: int = 1, padding: bool = True) -> Operator:
    return Operator(
        "convolution",
        "conv",
        shape,
        (k, k),
        m,
        (stride, stride),
        same_padding((k, k)) if padding else (0, 0, 0, 0),
    )


def test_published_cases_pass_in_both_modes() -> None:
    assert run_cases(CASES)[:2] == (38, 0)


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (0, lambda c: c["expected"]["tile_shapes"].update(inputs=[1, 16, 16, 32])),
        (1, lambda c: c["expected"]["inputs"]["tile_shapes_by_index"][1].update(shape=[1, 3, 128, 32])),
        (1, lambda c: c["expected"]["outputs"].update(tiles_per_dim=[1, 42, 1, 1])),
        (2, lambda c: c["expected"]["weights"]["innermost_origin"].update(step=64)),
        (3, lambda c: c["tiling_dims_derived"].update(weights="DimN")),
        (9, lambda c: c["expected"]["inputs"].update(num_tiles=3)),
        (19, lambda c: c["expected"]["inputs"].update(flat_origin_step=8192)),
        (37, lambda c: c["expected"]["inputs"].update(extent_in_dim={"dim": 0, "extents": [4, 4]})),
        (30, lambda c: c["expected"].update(property="same_tiles_for_all_tensors")),
    ],
)
def test_a_wrong_fact_fails(tmp_path: Path, case: int, change) -> None:
    file = json.loads(CASES.read_text())
    file["cases"] = [file["cases"][case]]
    change(file["cases"][0])
    (tmp_path / "wrong.json").write_text(json.dumps(file))
    assert run_cases(tmp_path / "wrong.json")[:2] == (0, 1)


def test_strategy_search_takes_the_first_that_fits() -> None:
    shapes = {
        (8, 8, 32): (3, 8),
        (16, 16, 128): (3, 16),
        (64, 16, 32): (3, 16),
        (3, 1024, 32): (3, 8),
        (512, 512, 16): (3, 3),
        (64, 64, 512): (3, 64),
        (64, 1024, 512): (64, 3),
    }
    labels = [strategy((1, *shape), (1, *field, 32), SMV) for shape, field in shapes.items()]
    assert labels == ["None", "DimNC", "DimNH", "DimNW", "DimNHW", "DimNCH", "DimNCW"]
    assert strategy((4, 8, 8, 128), (1, 8, 8, 32), SMV) == "DimN"
    assert strategy((1, 3, 4000, 32), (1, 3, 4000, 32), SMV) == 384000
    assert strategy((1, 128, 16, 16), (1, 32, 3, 16), SMV, "NCHW") == "DimNC"


def test_preference_order_and_minimum_tiles_are_data_of_the_machine() -> None:
    rows_first = replace(SMV, preference=("None", "DimN", "DimNH", "DimNC", "DimNCH"))
    op = conv((1, 16, 16, 128), 3, 16)
    assert tiling(op).tensors["inputs"].label == "DimNC"
    assert tiling(op, u=rows_first).tensors["inputs"].label == "DimNH"
    coarse = replace(SMV, minimum={**SMV.minimum, "convolution.weights": (32, "full", "full", "macs")})
    assert minimum_tile(coarse, "convolution.weights", (64, 3, 3, 16)) == (32, 3, 3, 16)


def test_a_smallest_tile_holds_a_window_and_whole_steps_of_it() -> None:
    low = replace(SMV, minimum={**SMV.minimum, "convolution.inputs": (1, 1, "full", "macs")})
    assert minimum_tile(low, "convolution.inputs", (1, 64, 64, 64), (7, 7)) == (1, 7, 64, 32)
    uneven = replace(
        SMV,
        minimum={**SMV.minimum, "convolution.inputs": (1, 8, "full", "macs")},
        preference=("None", "DimNH"),
    )
    op = Operator("convolution", "conv", (1, 64, 16, 32), (7, 7), 8, (3, 3))
    assert tiling(op, u=uneven).tensors["inputs"].tile[1] % 3 == 1
    assert not wrong(tiling(op, u=uneven))


def test_enumeration_runs_over_channels_before_rows() -> None:
    found = enumerate_tiles((1, 4, 4, 16), "DimNCH", (1, 2, 4, 8), (1, 1, 1, 8), SMV)
    assert found.tolist() == [[1, h, 4, c] for c in (8, 16) for h in (2, 3, 4)]


@pytest.mark.parametrize("seed", range(amount(300)))
def test_random_operators_keep_the_invariants(seed: int) -> None:
    rng = random.Random(f"corrected {seed}")
    op, u = operators.operator(rng), operators.unit(rng)
    found = tile(op, u)
    if isinstance(found, Infeasible):
        assert found.need_bytes > found.have_bytes
        return
    assert list(broken(found, u)) == []
    assert not wrong(found, u.accelerators, seed)


@pytest.mark.parametrize("seed", range(amount(60)))
def test_faithful_mode_keeps_them_where_the_method_claims_to(seed: int) -> None:
    """One image, one accelerator, stride 1 or no padding; pooling: see the defects."""
    rng = random.Random(f"faithful {seed}")
    op = operators.operator(
        rng, rng.choice(("convolution", "inner_product", "batch_norm", "unary", "elementwise", "softmax"))
    )
    pads = same_padding(op.kernel) if op.stride == (1, 1) and rng.random() < 0.5 else (0, 0, 0, 0)
    op = replace(op, shape=(1, *op.shape[1:]), pads=pads if op.kind == "convolution" else op.pads)
    found = tile(op, SMV, True)
    assert isinstance(found, Infeasible) or (
        list(broken(found, SMV, faithful=True)) == [] and not wrong(found, 1, seed)
    )


def test_defect_1_first_tile_is_misaligned() -> None:
    op = conv((1, 32, 64, 256), 3, 16, stride=2)
    assert wrong(tiling(op, faithful=True))
    assert list(broken(tiling(op, faithful=True), SMV, faithful=True)) == [
        "dimension 1: input piece 1 does not hold what its output needs"
    ]
    assert tiling(op, faithful=True).tensors["inputs"].cuts[1][1][0] == 2
    assert tiling(op).tensors["inputs"].cuts[1][1][0] == 1
    assert list(broken(tiling(op), SMV)) == []
    assert not wrong(tiling(op))


@pytest.mark.parametrize("faithful", [True, False])
def test_defect_2_no_candidate_is_a_value(faithful: bool) -> None:
    found = tile(conv((1, 20, 20, 32), 11, 16), SMV, faithful)
    assert found == Infeasible("WSPAD", 2 * 8 * 11 * 11 * 32, 32768, "conv")


@pytest.mark.parametrize("faithful", [True, False])
def test_defect_3_columns_are_never_cut(faithful: bool) -> None:
    assert tile(conv((1, 8, 2000, 16), 5, 16), SMV, faithful) == Infeasible(
        "ISPAD", 2 * 5 * 2000 * 16, 32768, "conv"
    )


def test_defect_4_pooling_loses_a_label() -> None:
    op = Operator("pooling", "pool", (1, 128, 128, 128), (2, 2), stride=(3, 3))
    old, new = tiling(op, faithful=True), tiling(op)
    assert (old.tensors["inputs"].label, old.tensors["outputs"].label, new.tensors["outputs"].label) == (
        "DimNHW",
        "DimNCW",
        "DimNHW",
    )
    assert old.tensors["inputs"].grid()[1] > 1 == old.tensors["outputs"].grid()[1]
    assert new.tensors["inputs"].grid()[:3] == new.tensors["outputs"].grid()[:3]
    assert wrong(old)
    assert not wrong(new)


def test_defect_5_pooling_has_a_tile_without_a_window() -> None:
    op = Operator("pooling", "pool", (1, 33, 64, 64), (2, 2), stride=(2, 2))
    grids = [[t.grid()[1] for t in tiling(op, faithful).tensors.values()] for faithful in (True, False)]
    assert grids == [[9, 8], [8, 8]]
    assert list(broken(tiling(op), SMV)) == []
    assert not wrong(tiling(op))


def test_defect_6_convolutions_of_several_images() -> None:
    op = conv((3, 16, 16, 64), 3, 16)
    old, new = tiling(op, faithful=True), tiling(op)
    assert old.tensors["outputs"].shape[0] == 1
    assert new.tensors["outputs"].shape[0] == 3
    assert new.tensors["inputs"].extents(0) == (1, 1, 1)
    assert not wrong(new)


@pytest.mark.parametrize(("shape", "accelerators"), [((1, 256), 2), ((40, 1024), 1)])
def test_defect_7_inner_products_are_sent_once_only(shape: tuple[int, int], accelerators: int) -> None:
    op = Operator("inner_product", "fc", shape, outputs=128)
    assert wrong(tiling(op, faithful=True), accelerators)
    assert not wrong(tiling(op), accelerators)
    assert not wrong(tiling(Operator("inner_product", "fc", (1, 256), outputs=128), faithful=True))


def test_defect_8_strides_need_not_be_square() -> None:
    op = Operator("convolution", "conv", (1, 40, 40, 64), (3, 3), 16, (2, 3), same_padding((3, 3)))
    assert list(broken(tiling(op), SMV)) == []
    assert not wrong(tiling(op))


def test_defect_9_kernels_may_be_larger_than_the_image() -> None:
    op = conv((1, 4, 4, 64), 7, 16)
    assert list(broken(tiling(op), SMV)) == []
    assert not wrong(tiling(op))
    assert isinstance(tile(conv((1, 4, 4, 64), 7, 16, padding=False), SMV), Infeasible)


def test_slack_is_kept_from_the_full_tensor_in_faithful_mode_only() -> None:
    """70 channels take 72; a tile of 64 is charged 66 * taps per kernel upstream."""
    op = Operator("convolution", "conv", (1, 8, 8, 70), (3, 3), 64)
    old, new = (tiling(op, faithful).tensors["weights"].tile for faithful in (True, False))
    assert new[0] * 9 * (-(-new[3] // 8) * 8) <= 16384
    assert old[0] * 9 * (old[3] + 2) <= 16384


def test_dilated_windows_overlap_by_what_they_span() -> None:
    """Three taps 4 apart span 9 rows: tiles share 8, and no tile is smaller."""
    op = Operator("convolution", "conv", (1, 64, 40, 32), (3, 3), 16, dilation=(4, 4))
    t = tiling(op)
    (first, rows), (second, _) = t.tensors["inputs"].cuts[1][:2]
    assert rows - (second - first) == 8
    assert t.tensors["weights"].tile[1:3] == (3, 3)
    assert not wrong(t)
    assert tile(replace(op, shape=(1, 8, 40, 32)), SMV) == Infeasible(
        "SMAUG", 1, 0, "conv", "inputs as large as the kernel"
    )


def test_rows_share_the_scratchpad_of_the_weights() -> None:
    """256 rows of 64 fit the inputs; of three further operands 5,461 elements each fit the weights."""
    t = tiling(Operator("rows", "r", (1024, 64), others=((1024, 64),) * 3))
    assert t.tensors["inputs"].tile == (85, 64)


def test_a_last_tile_without_a_window_is_not_made() -> None:
    op = conv((1, 64, 64, 32), 5, 16, stride=3, padding=False)
    assert [tiling(op, faithful).tensors["inputs"].grid()[1] for faithful in (True, False)] == [11, 10]
    assert "inputs: no call uses 1 of its tiles" in list(broken(tiling(op, faithful=True), SMV))


@pytest.mark.parametrize("kind", ["depthwise", "attention", "rows", "transposed"])
@pytest.mark.parametrize("seed", range(amount(25)))
def test_own_operators_on_the_same_scaffold(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    op, u = operators.operator(rng, kind), operators.unit(rng)
    found = tile(op, u)
    assert isinstance(found, Infeasible) or (
        list(broken(found, u)) == [] and not wrong(found, u.accelerators, seed)
    )


def test_a_new_operator_is_one_entry(monkeypatch) -> None:
    monkeypatch.setitem(smaug.OPTIMIZERS, "relu6", smaug.elementwise)
    assert tiling(Operator("relu6", "r", (2, 16384))).tensors["outputs"].grid() == (1, 2)
    assert (
        str(tile(Operator("fft", "f", (1, 8)), SMV))
        == "f: SMAUG has no optimizers of kind fft; leave solver.tiling out"
    )


def test_tiles_do_not_overlap_in_what_accelerators_do() -> None:
    t = tiling(conv((1, 56, 56, 64), 3, 64))
    one, three = (calls(t.nest, t.tensors, n) for n in (1, 3))
    assert sorted(np.unique(three.accelerator)) == [0, 1, 2]
    assert not wrong(t, 3)
    assert traffic(one, t.tensors)["outputs"] == traffic(three, t.tensors)["outputs"] == 56 * 56 * 64
    assert traffic(three, t.tensors)["inputs"] >= traffic(one, t.tensors)["inputs"]


def test_larger_scratchpads_never_load_more_inputs() -> None:
    op = conv((1, 56, 56, 64), 3, 64)
    loaded = []
    for kib in (16, 32, 64, 128, 512):
        t = tiling(op, u=replace(SMV, tile_bytes=kib * 1024))
        loaded.append(traffic(calls(t.nest, t.tensors), t.tensors)["inputs"])
    assert loaded == sorted(loaded, reverse=True)
    assert loaded[-1] == 56 * 56 * 64
