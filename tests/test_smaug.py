"""SMAUG's optimizers: published tiles, invariants on random operators, known defects shown and gone, schedules as nests."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dse.nest import Infeasible, Loop, Store, faults
from dse.sim.counts import count
from dse.sim.evaluate import Problem
from dse.tiling import mapper, smaug
from dse.tiling.factor import Unit, enumerate_tiles, smallest, strategy, unit
from dse.tiling.mapper import OUTSIDE, host_copies, plan, replayed_counts
from dse.tiling.reading import read
from dse.tiling.schedule import calls, traffic
from dse.tiling.smaug import Operator, Tiling, same, tile
from hw import machine
from hw.arch import Arch
from tests import operators
from tests.cases import run as run_cases
from tests.layers import layer
from tests.tiled import broken, wrong
from workloads import catalog
from workloads.einsum import Einsum, einsum

CASES = Path(__file__).parent / "data" / "smaug_tiling_cases.json"
SMV = Unit()


def arch(**numbers: int) -> Arch:
    """The machine smv; scratchpad bytes and PEs may be given."""
    spec = machine.load("smv")
    nodes = [replace(n, capacity=numbers.get("spad", n.capacity)) if n.name.endswith("spad") else n for n in spec.nodes]
    nodes = [replace(n, dims={"pe": numbers.get("pes", 8), "mac": 32}) if n.name == "array" else n for n in nodes]
    return machine.arch(replace(spec, nodes=tuple(nodes)))


def tiling(op: Operator, faithful: bool = False, u: Unit = SMV) -> Tiling:
    found = tile(op, u, faithful)
    assert isinstance(found, Tiling), found
    return found


def conv(shape: tuple[int, ...], k: int, m: int, stride: int = 1, padding: bool = True) -> Operator:
    return Operator("convolution", "conv", shape, (k, k), m, (stride, stride), same((k, k)) if padding else (0, 0, 0, 0))


def test_published_cases_pass_in_both_modes() -> None:
    assert run_cases(CASES)[:2] == (38, 0)


@pytest.mark.parametrize(("case", "change"), [
    (0, lambda c: c["expected"]["tile_shapes"].update(inputs=[1, 16, 16, 32])),
    (1, lambda c: c["expected"]["inputs"]["tile_shapes_by_index"][1].update(shape=[1, 3, 128, 32])),
    (1, lambda c: c["expected"]["outputs"].update(tiles_per_dim=[1, 42, 1, 1])),
    (2, lambda c: c["expected"]["weights"]["innermost_origin"].update(step=64)),
    (3, lambda c: c["tiling_dims_derived"].update(weights="DimN")),
    (9, lambda c: c["expected"]["inputs"].update(num_tiles=3)),
    (19, lambda c: c["expected"]["inputs"].update(flat_origin_step=8192)),
    (37, lambda c: c["expected"]["inputs"].update(extent_in_dim={"dim": 0, "extents": [4, 4]})),
    (30, lambda c: c["expected"].update(property="same_tiles_for_all_tensors"))])
def test_a_wrong_fact_fails(tmp_path: Path, case: int, change) -> None:
    file = json.loads(CASES.read_text())
    file["cases"] = [file["cases"][case]]
    change(file["cases"][0])
    (tmp_path / "wrong.json").write_text(json.dumps(file))
    assert run_cases(tmp_path / "wrong.json")[:2] == (0, 1)


def test_strategy_search_takes_the_first_that_fits() -> None:
    shapes = {(8, 8, 32): (3, 8), (16, 16, 128): (3, 16), (64, 16, 32): (3, 16), (3, 1024, 32): (3, 8), (512, 512, 16): (3, 3), (64, 64, 512): (3, 64),
              (64, 1024, 512): (64, 3)}
    labels = [strategy((1, *shape), (1, *field, 32), SMV) for shape, field in shapes.items()]
    assert labels == ["None", "DimNC", "DimNH", "DimNW", "DimNHW", "DimNCH", "DimNCW"]
    assert strategy((4, 8, 8, 128), (1, 8, 8, 32), SMV) == "DimN" and strategy((1, 3, 4000, 32), (1, 3, 4000, 32), SMV) == 384000
    assert strategy((1, 128, 16, 16), (1, 32, 3, 16), SMV, "NCHW") == "DimNC"


def test_preference_order_and_minimum_tiles_are_data_of_the_machine() -> None:
    rows_first = replace(SMV, preference=("None", "DimN", "DimNH", "DimNC", "DimNCH"))
    op = conv((1, 16, 16, 128), 3, 16)
    assert tiling(op).tensors["inputs"].label == "DimNC" and tiling(op, u=rows_first).tensors["inputs"].label == "DimNH"
    coarse = replace(SMV, minimum={**SMV.minimum, "convolution.weights": (32, "full", "full", "macs")})
    assert smallest(coarse, "convolution.weights", (64, 3, 3, 16)) == (32, 3, 3, 16)


def test_enumeration_runs_over_channels_before_rows() -> None:
    found = enumerate_tiles((1, 4, 4, 16), "DimNCH", (1, 2, 4, 8), (1, 1, 1, 8), SMV)
    assert found.tolist() == [[1, h, 4, c] for c in (8, 16) for h in (2, 3, 4)]


@pytest.mark.parametrize("seed", range(300))
def test_random_operators_keep_the_invariants(seed: int) -> None:
    rng = random.Random(f"corrected {seed}")
    op, u = operators.operator(rng), operators.unit(rng)
    found = tile(op, u)
    if isinstance(found, Infeasible):
        assert found.need_bytes > found.have_bytes
        return
    assert list(broken(found, u)) == []
    assert not wrong(found, u.accelerators, seed)


@pytest.mark.parametrize("seed", range(60))
def test_faithful_mode_keeps_them_where_the_method_claims_to(seed: int) -> None:
    """One image, one accelerator, stride 1 or no padding; pooling: see the defects."""
    rng = random.Random(f"faithful {seed}")
    op = operators.operator(rng, rng.choice(("convolution", "inner_product", "batch_norm", "unary", "elementwise", "softmax")))
    pads = same(op.kernel) if op.stride == (1, 1) and rng.random() < 0.5 else (0, 0, 0, 0)
    op = replace(op, shape=(1, *op.shape[1:]), pads=pads if op.kind == "convolution" else op.pads)
    found = tile(op, SMV, True)
    assert isinstance(found, Infeasible) or (list(broken(found, SMV)) == [] and not wrong(found, 1, seed))


def test_defect_1_first_tile_is_misaligned() -> None:
    op = conv((1, 32, 64, 256), 3, 16, stride=2)
    assert wrong(tiling(op, faithful=True))
    assert list(broken(tiling(op, faithful=True), SMV)) == ["dimension 1: input piece 1 does not hold what its output needs"]
    assert tiling(op, faithful=True).tensors["inputs"].cuts[1][1][0] == 2 and tiling(op).tensors["inputs"].cuts[1][1][0] == 1
    assert list(broken(tiling(op), SMV)) == [] and not wrong(tiling(op))


@pytest.mark.parametrize("faithful", [True, False])
def test_defect_2_no_candidate_is_a_value(faithful: bool) -> None:
    found = tile(conv((1, 20, 20, 32), 11, 16), SMV, faithful)
    assert found == Infeasible("WSPAD", 2 * 8 * 11 * 11 * 32, 32768, "conv")


@pytest.mark.parametrize("faithful", [True, False])
def test_defect_3_columns_are_never_cut(faithful: bool) -> None:
    assert tile(conv((1, 8, 2000, 16), 5, 16), SMV, faithful) == Infeasible("ISPAD", 2 * 5 * 2000 * 16, 32768, "conv")


def test_defect_4_pooling_loses_a_label() -> None:
    op = Operator("pooling", "pool", (1, 128, 128, 128), (2, 2), stride=(3, 3))
    old, new = tiling(op, faithful=True), tiling(op)
    assert (old.tensors["inputs"].label, old.tensors["outputs"].label, new.tensors["outputs"].label) == ("DimNHW", "DimNCW", "DimNHW")
    assert old.tensors["inputs"].grid()[1] > 1 == old.tensors["outputs"].grid()[1] and new.tensors["inputs"].grid()[:3] == new.tensors["outputs"].grid()[:3]
    assert wrong(old) and not wrong(new)


def test_defect_5_pooling_has_a_tile_without_a_window() -> None:
    op = Operator("pooling", "pool", (1, 33, 64, 64), (2, 2), stride=(2, 2))
    grids = [[t.grid()[1] for t in tiling(op, faithful).tensors.values()] for faithful in (True, False)]
    assert grids == [[9, 8], [8, 8]] and list(broken(tiling(op), SMV)) == [] and not wrong(tiling(op))


def test_defect_6_convolutions_of_several_images() -> None:
    op = conv((3, 16, 16, 64), 3, 16)
    old, new = tiling(op, faithful=True), tiling(op)
    assert old.tensors["outputs"].shape[0] == 1 and new.tensors["outputs"].shape[0] == 3
    assert new.tensors["inputs"].extents(0) == (1, 1, 1) and not wrong(new)


@pytest.mark.parametrize(("shape", "accelerators"), [((1, 256), 2), ((40, 1024), 1)])
def test_defect_7_inner_products_are_sent_once_only(shape: tuple[int, int], accelerators: int) -> None:
    op = Operator("inner_product", "fc", shape, outputs=128)
    assert wrong(tiling(op, faithful=True), accelerators) and not wrong(tiling(op), accelerators)
    assert not wrong(tiling(Operator("inner_product", "fc", (1, 256), outputs=128), faithful=True))


def test_defect_8_strides_need_not_be_square() -> None:
    op = Operator("convolution", "conv", (1, 40, 40, 64), (3, 3), 16, (2, 3), same((3, 3)))
    assert list(broken(tiling(op), SMV)) == [] and not wrong(tiling(op))


def test_defect_9_kernels_may_be_larger_than_the_image() -> None:
    op = conv((1, 4, 4, 64), 7, 16)
    assert list(broken(tiling(op), SMV)) == [] and not wrong(tiling(op))
    assert isinstance(tile(conv((1, 4, 4, 64), 7, 16, padding=False), SMV), Infeasible)


def test_slack_is_kept_from_the_full_tensor_in_faithful_mode_only() -> None:
    """70 channels take 72; a tile of 64 is charged 66 * taps per kernel upstream."""
    op = Operator("convolution", "conv", (1, 8, 8, 70), (3, 3), 64)
    old, new = (tiling(op, faithful).tensors["weights"].tile for faithful in (True, False))
    assert new[0] * 9 * (-(-new[3] // 8) * 8) <= 16384 and old[0] * 9 * (old[3] + 2) <= 16384


@pytest.mark.parametrize("kind", ["depthwise", "attention"])
@pytest.mark.parametrize("seed", range(25))
def test_own_operators_on_the_same_scaffold(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    op, u = operators.operator(rng, kind), operators.unit(rng)
    found = tile(op, u)
    assert isinstance(found, Infeasible) or (list(broken(found, u)) == [] and not wrong(found, u.accelerators, seed))


def test_a_new_operator_is_one_entry(monkeypatch) -> None:
    monkeypatch.setitem(smaug.OPTIMIZERS, "relu6", smaug.elementwise)
    assert tiling(Operator("relu6", "r", (2, 16384))).tensors["outputs"].grid() == (1, 2)
    assert str(tile(Operator("fft", "f", (1, 8)), SMV)) == "f: SMAUG needs 1 optimizers of kind fft, has 0"


EINSUMS = ["conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2", "conv:k=256,c=96,p=7,q=7,r=3,s=3,pad=1", "conv:k=128,c=8,p=32,q=32,r=1,s=1",
           "conv:k=70,c=150,p=9,q=9,r=1,s=1", "conv:k=16,c=32,p=30,q=30,r=5,s=5,stride=3", "conv:k=64,c=64,p=14,q=14,r=3,s=3,groups=2",
           "conv:k=32,c=64,p=20,q=20,r=3,s=3,n=3", "gemm:m=70,n=300,k=513", "gemm:m=1,n=1000,k=2048",
           "pool:c=70,p=30,q=30,r=2,s=2,stride=2", "pool:c=64,p=56,q=56,r=3,s=3,stride=2,pad=1,n=2", "batchnorm:c=64,p=56,q=56",
           "batchnorm:c=30,p=9,q=9,n=4", "unary:n=40000", "binary:n=50000", "depthwise:c=130,p=40,q=40,r=3,s=3", "attention:heads=4,q=64,context=200,d=64",
           "conv:k=40,c=24,p=33,q=33,r=7,s=7,stride=2,pad=3", "conv:k=512,c=16,p=16,q=16,r=3,s=3,pad=1"]


def parts(source: str):
    return [e for e in catalog.load(source).einsums if not isinstance(read(e), Infeasible)]


@pytest.mark.parametrize("numbers", [{}, {"spad": 8192}, {"spad": 131072, "pes": 16}, {"pes": 4}], ids=str)
def test_replayed_actions_equal_the_evaluators_inside_the_nest_space(numbers: dict[str, int]) -> None:
    """All actions at all levels, not only traffic: loads and sends by replay, kernels call by call, against one nest."""
    equal = [same_actions(e, arch(**numbers)) for source in EINSUMS for e in parts(source)]
    assert False not in equal and equal.count(True) >= 8


def same_actions(e: Einsum, where: Arch) -> bool | None:
    """Replay against the evaluator; None where there is no nest."""
    found = plan(e, where)
    if isinstance(found, Infeasible) or found.outside:
        return None
    got, wanted = ({(r.level, r.tensor, r.action): (r.elems, r.busiest_elems) for r in rows}
                   for rows in (replayed_counts(e, where, found), count(found.mapping, e, where)))
    return faults(found.mapping, e, where) == [] and got == wanted


@pytest.mark.parametrize("seed", range(80))
def test_replay_of_random_layers(seed: int) -> None:
    rng = random.Random(f"layers {seed}")
    assert same_actions(layer(rng), arch(spad=rng.choice((4096, 8192, 32768)), pes=rng.choice((2, 8, 16)))) is not False


def test_most_random_layers_are_nests() -> None:
    rng = random.Random("nests")
    assert sum(same_actions(layer(rng), arch()) is True for _ in range(40)) >= 25


def test_why_a_schedule_is_outside_the_nest_space() -> None:
    def why(source: str, **numbers: int) -> str:
        found = plan(catalog.load(source).einsums[0], arch(**numbers))
        assert not isinstance(found, Infeasible)
        assert (found.mapping is OUTSIDE) == bool(found.outside)
        return found.outside

    assert why("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1") == "the first tile has more rows than the next"
    assert why("conv:k=16,c=64,p=16,q=16,r=3,s=3,pad=1").startswith("ISPAD would need")
    assert why("conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2") == ""
    e = einsum("O[k,p,q] += I[c,2*p,2*q] * W[k,c]", {"k": 64, "c": 64, "p": 28, "q": 28}, sizes={"I": (64, 56, 56)})
    assert plan(e, arch()).outside == "tiles hold rows or columns that no window reads"


@pytest.mark.parametrize("objective", ["energy", "latency", "edp"])
def test_the_mapper_prices_all_it_can_tile_and_says_what_it_cannot(objective: str) -> None:
    for e in (e for source in EINSUMS for e in catalog.load(source).einsums):
        found = mapper.smaug(Problem(arch(), e, objective), random.Random(0))
        if isinstance(found, Infeasible):
            assert isinstance(read(e), Infeasible) and "optimizers" in found.unit
        else:
            assert found[0].energy_pj > 0 and 0 <= found[0].gap < 1 and found == mapper.smaug(Problem(arch(), e, objective), random.Random(1))


def test_larger_scratchpads_never_load_more_inputs_and_too_small_ones_are_infeasible() -> None:
    op = conv((1, 56, 56, 64), 3, 64)
    loaded = []
    for kib in (16, 32, 64, 128, 512):
        t = tiling(op, u=replace(SMV, tile_bytes=kib * 1024))
        loaded.append(traffic(calls(t.nest, t.tensors), t.tensors)["inputs"])
    assert loaded == sorted(loaded, reverse=True) and loaded[-1] == 56 * 56 * 64
    small = plan(catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0], arch(spad=4096))
    assert isinstance(small, Infeasible) and small.level in ("ISPAD", "WSPAD", "OSPAD") and small.need_bytes > small.have_bytes == 4096


def test_tiles_do_not_overlap_in_what_accelerators_do() -> None:
    t = tiling(conv((1, 56, 56, 64), 3, 64))
    one, three = (calls(t.nest, t.tensors, n) for n in (1, 3))
    assert sorted(np.unique(three.accelerator)) == [0, 1, 2] and not wrong(t, 3)
    assert traffic(one, t.tensors)["outputs"] == traffic(three, t.tensors)["outputs"] == 56 * 56 * 64
    assert traffic(three, t.tensors)["inputs"] >= traffic(one, t.tensors)["inputs"]


def test_host_copies_are_fewer_where_channels_stay_whole() -> None:
    found = plan(catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0], arch())
    rows = host_copies(found)
    assert rows["inputs"].number == found.tiling.tensors["inputs"].grid()[1] and rows["inputs"].elems > 56 * 56 * 64
    by_channel = host_copies(plan(catalog.load("conv:k=16,c=128,p=16,q=16,r=3,s=3,pad=1").einsums[0], arch()))["inputs"]
    assert (by_channel.number, by_channel.shortest_elems) == (2 * 16 * 16, 64)


def test_a_tile_stays_where_the_one_entry_rule_keeps_it() -> None:
    """One input tile per image and row stays over all kernels; weights are loaded again for every row."""
    found = plan(catalog.load("conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2").einsums[0], arch())
    nodes = list(found.mapping.nodes)
    place = {n.tensor: i for i, n in enumerate(nodes) if isinstance(n, Store) and n.level.endswith("SPAD")}
    loops = [i for i, n in enumerate(nodes) if isinstance(n, Loop)]
    assert loops[0] < place["I"] < place["W"] and nodes[loops[0]].rank == "p"


def test_unit_of_machines() -> None:
    assert unit(arch(), 16) == SMV
    shared = unit(machine.arch(machine.load("edge_array")), 8)
    assert shared is not None and shared.names == ("GBUF",) * 3 and shared.tile_bytes == 131072 // 3 and (shared.pes, shared.macs) == (16, 16)


@pytest.mark.parametrize("seed", range(40))
def test_an_einsum_is_read_as_an_operator_of_its_size(seed: int) -> None:
    e = layer(random.Random(f"read {seed}"))
    found = read(e)
    assert not isinstance(found, Infeasible)
    op = found.operator
    rows, columns = op.windows()
    images = op.kind in ("convolution", "depthwise", "pooling")
    made = op.shape[0] * rows.outputs(op.shape[1]) * columns.outputs(op.shape[2]) * op.shape[3] if images else int(np.prod(op.shape))
    made *= op.kernel[0] * op.kernel[1] * (op.outputs if op.kind in ("convolution", "inner_product") else 1)
    assert made * int(np.prod([n for _, n in found.groups])) == e.points()


@pytest.mark.parametrize(("text", "extents", "what"), [
    ("O[p] += I[p+2*r] * W[r]", {"p": 8, "r": 3}, "dilated"), ("O[c,p] = lrn(I[c+w-2,p])", {"c": 8, "p": 4, "w": 5}, "kind lrn"),
    ("Y[m,n] = X[m,n] + B[n]", {"m": 4, "n": 4}, "kind add"), ("O[p] += I[p+r+2] * W[r]", {"p": 8, "r": 3}, "cropped"),
    ("C[m,n] += A[m,k] * B[k,n] * D[k]", {"m": 2, "n": 2, "k": 2}, "kind mac")])
def test_einsums_that_smaug_has_no_optimizer_for(text: str, extents: dict[str, int], what: str) -> None:
    found = mapper.smaug(Problem(arch(), einsum(text, extents), "energy"), random.Random(0))
    assert isinstance(found, Infeasible) and found.level == "SMAUG" and what in str(found)


def test_concatenation_moves_every_element_once() -> None:
    e = einsum("O[c,p] = copy(A[c,p], B[c-24,p])", {"c": 64, "p": 104}, sizes={"A": (24, 104), "B": (40, 104)})
    found = mapper.smaug(Problem(arch(), e, "energy"), random.Random(0))
    assert not isinstance(found, Infeasible) and found[0].mapping is OUTSIDE
    assert found[0].certificate == "outside the nest space: several inputs are moved into one output"
    moved = {(r.tensor, r.action): r.elems for r in found[0].counts if r.level == "DRAM"}
    assert moved == {("A", "read"): 24 * 104, ("B", "read"): 40 * 104, ("O", "write"): 64 * 104}


def test_machines_that_smaug_cannot_use() -> None:
    e = catalog.load("gemm:m=8,n=8,k=8").einsums[0]
    whole = machine.arch(machine.load("smv"))
    bare = replace(whole, levels=whole.levels[:1], fanouts=())
    strict = replace(whole, levels=(whole.levels[0], replace(whole.levels[1], name="L2", bypass=False, capacity_bits=8192), *whole.levels[1:]),
                     fanouts=(replace(whole.fanouts[0], outside=5),))
    mixed = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 8}, bits={"A": 8})
    for where, what, why in ((bare, e, "level between DRAM"), (strict, e, "past level L2"), (whole, mixed, "several sizes")):
        assert why in str(plan(what, where))
