"""SMAUG as a solver: einsums read as operators, schedules as nests or by replay, machines found by what their
levels hold.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bench import smaug as bench
from dse.mapper.baselines.exhaustive import enumerated
from dse.mapper.smaug import mapper
from dse.mapper.smaug.factor import Unit, unit
from dse.mapper.smaug.mapper import host_copies, plan
from dse.mapper.smaug.reading import read
from dse.mapper.smaug.replay import replay_counts
from dse.mapping.nest import Infeasible, Loop, Store, faults
from dse.sim.counts.counts import Count, count
from dse.sim.einsum.evaluate import Problem
from hw import machine
from hw.arch import Arch, Fanout
from tests.amount import amount, some
from tests.layers import layer
from workloads import catalog
from workloads.einsum import Einsum, einsum


def arch(**numbers: int) -> Arch:
    """The machine smv; scratchpad bytes and PEs may be given."""
    spec = machine.load("smv")
    nodes = [
        replace(n, capacity=numbers.get("spad", n.capacity)) if n.name.endswith("spad") else n
        for n in spec.nodes
    ]
    nodes = [
        replace(n, dims={"pe": numbers.get("pes", 8), "mac": 32}) if n.name == "array" else n for n in nodes
    ]
    return machine.arch(replace(spec, nodes=tuple(nodes)))


EINSUMS = [
    "conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2",
    "conv:k=256,c=96,p=7,q=7,r=3,s=3,pad=1",
    "conv:k=128,c=8,p=32,q=32,r=1,s=1",
    "conv:k=70,c=150,p=9,q=9,r=1,s=1",
    "conv:k=16,c=32,p=30,q=30,r=5,s=5,stride=3",
    "conv:k=64,c=64,p=14,q=14,r=3,s=3,groups=2",
    "conv:k=32,c=64,p=20,q=20,r=3,s=3,n=3",
    "gemm:m=70,n=300,k=513",
    "gemm:m=1,n=1000,k=2048",
    "pool:c=70,p=30,q=30,r=2,s=2,stride=2",
    "pool:c=64,p=56,q=56,r=3,s=3,stride=2,pad=1,n=2",
    "batchnorm:c=64,p=56,q=56",
    "batchnorm:c=30,p=9,q=9,n=4",
    "unary:n=40000",
    "binary:n=50000",
    "depthwise:c=130,p=40,q=40,r=3,s=3",
    "attention:heads=4,q=64,context=200,d=64",
    "conv:k=40,c=24,p=33,q=33,r=7,s=7,stride=2,pad=3",
    "conv:k=512,c=16,p=16,q=16,r=3,s=3,pad=1",
    "conv:k=32,c=32,p=30,q=30,r=3,s=3,dilation=2",
]


def parts(source: str):
    return [e for e in catalog.load(source).einsums if not isinstance(read(e), Infeasible)]


@pytest.mark.parametrize("numbers", [{}, {"spad": 8192}, {"spad": 131072, "pes": 16}, {"pes": 4}], ids=str)
def test_replayed_actions_equal_the_evaluators_inside_the_nest_space(numbers: dict[str, int]) -> None:
    """All actions at all levels, not only traffic: loads and sends by replay, kernels call by call, against
    one nest.
    """
    equal = [same_actions(e, arch(**numbers)) for source in EINSUMS for e in parts(source)]
    assert False not in equal
    assert equal.count(True) >= 8


def same_actions(e: Einsum, where: Arch) -> bool | None:
    """Replay against the evaluator; None where there is no nest."""
    found = plan(e, where)
    if isinstance(found, Infeasible) or found.why_no_nest:
        return None
    got, wanted = (
        {(r.level, r.tensor, r.action): (r.elems, r.busiest_elems) for r in rows}
        for rows in (replay_counts(e, where, found.schedule), count(found.mapping, e, where))
    )
    return faults(found.mapping, e, where) == [] and got == wanted


@pytest.mark.parametrize("seed", range(amount(80)))
def test_replay_of_random_layers(seed: int) -> None:
    rng = random.Random(f"layers {seed}")
    assert (
        same_actions(layer(rng), arch(spad=rng.choice((4096, 8192, 32768)), pes=rng.choice((2, 8, 16))))
        is not False
    )


def test_most_random_layers_are_nests() -> None:
    rng = random.Random("nests")
    assert sum(same_actions(layer(rng), arch()) is True for _ in range(40)) >= 25


@pytest.mark.parametrize("spad", [8192, 32768])
def test_rows_and_transposed_convolutions_write_the_tiles_of_their_outputs(spad: int) -> None:
    """Neighbouring tiles of a transposed convolution write the rows that they share twice."""
    sources = (
        "conv_transpose:k=32,c=64,p=28,q=14,r=4,s=4,stride=2,pad=1",
        "conv_transpose:k=16,c=64,p=40,q=20,r=3,s=3,stride=2",
        "bert_tiny",
    )
    seen = set()
    for e in (e for source in sources for e in catalog.load(source).einsums[:14]):
        found = plan(e, arch(spad=spad))
        assert not isinstance(found, Infeasible)
        t = found.schedule.tiling
        if not found.why_no_nest and t.operator.kind in ("softmax", "rows", "transposed"):
            seen.add(t.operator.kind)
            assert faults(found.mapping, e, arch()) == []
            rows = {r.key: r.elems for r in count(found.mapping, e, arch())}
            tiles = sum(t.tensors["outputs"].elems()) * found.schedule.operator_view.repeats()
            assert rows["DRAM", e.output.tensor, "write"] == tiles
    assert seen == {"rows", "transposed"}


def test_why_a_schedule_is_outside_the_nest_space() -> None:
    def why(source: str, **numbers: int) -> str:
        found = plan(catalog.load(source).einsums[0], arch(**numbers))
        assert not isinstance(found, Infeasible)
        assert bool(found.mapping.nodes) == (found.why_no_nest == found.mapping.non_nest_text == "")
        return found.why_no_nest

    assert why("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1") == "the first tile has more rows than the next"
    assert why("conv:k=16,c=64,p=16,q=16,r=3,s=3,pad=1").startswith("ISPAD would need")
    assert why("conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2") == ""
    e = einsum(
        "O[k,p,q] += I[c,2*p,2*q] * W[k,c]", {"k": 64, "c": 64, "p": 28, "q": 28}, sizes={"I": (64, 56, 56)}
    )
    assert plan(e, arch()).why_no_nest == "tiles hold rows or columns that no window reads"


@pytest.mark.parametrize("objective", ["energy", "latency", "edp"])
def test_the_mapper_prices_all_it_can_tile_and_says_what_it_cannot(objective: str) -> None:
    for e in (e for source in EINSUMS for e in catalog.load(source).einsums):
        found = mapper.smaug(Problem(arch(), e, objective), random.Random(0))
        if isinstance(found, Infeasible):
            assert isinstance(read(e), Infeasible)
            assert "optimizers" in found.unit
        else:
            assert found[0].energy_pj > 0
            assert found[0].gap_to_bound >= 0
            assert found == mapper.smaug(Problem(arch(), e, objective), random.Random(1))


def test_scratchpads_that_are_too_small_are_infeasible() -> None:
    small = plan(catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0], arch(spad=4096))
    assert isinstance(small, Infeasible)
    assert small.level in ("ISPAD", "WSPAD", "OSPAD")
    assert small.need_bytes > small.have_bytes == 4096


def test_host_copies_are_fewer_where_channels_stay_whole() -> None:
    found = plan(catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0], arch())
    rows = host_copies(found)
    assert rows["inputs"].number == found.schedule.tiling.tensors["inputs"].grid()[1]
    assert rows["inputs"].elems > 56 * 56 * 64
    by_channel = host_copies(
        plan(catalog.load("conv:k=16,c=128,p=16,q=16,r=3,s=3,pad=1").einsums[0], arch())
    )["inputs"]
    assert (by_channel.number, by_channel.shortest_elems) == (2 * 16 * 16, 64)


def test_a_tile_stays_where_the_one_entry_rule_keeps_it() -> None:
    """One input tile per image and row stays over all kernels; weights are loaded again for every row."""
    found = plan(catalog.load("conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2").einsums[0], arch())
    nodes = list(found.mapping.nodes)
    place = {n.tensor: i for i, n in enumerate(nodes) if isinstance(n, Store) and n.level.endswith("SPAD")}
    loops = [i for i, n in enumerate(nodes) if isinstance(n, Loop)]
    assert loops[0] < place["I"] < place["W"]
    assert nodes[loops[0]].rank == "p"


def test_unit_of_machines() -> None:
    assert unit(arch(), 16) == Unit()
    shared = unit(machine.arch(machine.load("edge_array")), 8)
    assert shared is not None
    assert shared.names == ("GBUF",) * 3
    assert shared.tile_bytes == 131072 // 3
    assert (shared.pes, shared.macs) == (16, 16)


@pytest.mark.parametrize("seed", range(amount(40)))
def test_an_einsum_is_read_as_an_operator_of_its_size(seed: int) -> None:
    e = layer(random.Random(f"read {seed}"))
    found = read(e)
    assert not isinstance(found, Infeasible)
    op = found.operator
    rows, columns = op.windows()
    images = op.kind in ("convolution", "depthwise", "pooling")
    made = (
        op.shape[0] * rows.outputs(op.shape[1]) * columns.outputs(op.shape[2]) * op.shape[3]
        if images
        else int(np.prod(op.shape))
    )
    made *= op.kernel[0] * op.kernel[1] * (op.outputs if op.kind in ("convolution", "inner_product") else 1)
    assert made * int(np.prod([n for _, n in found.repeated_ranks])) == e.points()


@pytest.mark.parametrize(
    ("text", "extents", "what"),
    [
        ("O[c,p] = lrn(I[c+w-2,p])", {"c": 8, "p": 4, "w": 5}, "kind lrn"),
        ("Y[m,n] = X[n] + B[m,n]", {"m": 4, "n": 4}, "kind add"),
        ("O[p] += I[p+r+2] * W[r]", {"p": 8, "r": 3}, "cropped"),
        ("C[m,n] += A[m,k] * B[k,n] * D[k]", {"m": 2, "n": 2, "k": 2}, "kind mac"),
    ],
)
def test_einsums_that_smaug_has_no_optimizer_for(text: str, extents: dict[str, int], what: str) -> None:
    found = mapper.smaug(Problem(arch(), einsum(text, extents), "energy"), random.Random(0))
    assert isinstance(found, Infeasible)
    assert found.level == "SMAUG"
    assert what in str(found)


def test_concatenation_moves_every_element_once() -> None:
    e = einsum(
        "O[c,p] = copy(A[c,p], B[c-24,p])", {"c": 64, "p": 104}, sizes={"A": (24, 104), "B": (40, 104)}
    )
    found = mapper.smaug(Problem(arch(), e, "energy"), random.Random(0))
    assert not isinstance(found, Infeasible)
    assert found[0].mapping.nodes == ()
    assert (
        found[0].mapping.non_nest_text.splitlines()[0]
        == "outside the nest space: several inputs are moved into one output"
    )
    moved = {(r.tensor, r.action): r.elems for r in found[0].counts if r.level == "DRAM"}
    assert moved == {("A", "read"): 24 * 104, ("B", "read"): 40 * 104, ("O", "write"): 64 * 104}


def test_machines_that_smaug_cannot_use() -> None:
    e = catalog.load("gemm:m=8,n=8,k=8").einsums[0]
    whole = machine.arch(machine.load("smv"))
    bare = replace(whole, levels=whole.levels[:1], fanouts=())
    strict = replace(
        whole,
        levels=(
            whole.levels[0],
            replace(whole.levels[1], name="L2", bypass=False, capacity_bits=8192),
            *whole.levels[1:],
        ),
        fanouts=(replace(whole.fanouts[0], outside=5),),
    )
    mixed = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 8}, bits={"A": 8})
    nowhere = replace(
        whole, levels=(*whole.levels[:3], replace(whole.levels[3], may_keep=("weight",)), *whole.levels[4:])
    )
    for where, what, why in (
        (bare, e, "level between DRAM"),
        (nowhere, e, "level between DRAM"),
        (strict, e, "past level L2"),
        (whole, mixed, "several sizes"),
    ):
        assert why in str(plan(what, where))


def test_scratchpads_are_found_by_what_they_hold() -> None:
    whole = machine.arch(machine.load("smv"))
    inputs, weights, outputs = whole.levels[1:4]
    both = replace(inputs, may_keep=("input", "output"))
    shared = replace(
        whole,
        levels=(whole.levels[0], both, weights, whole.levels[4]),
        fanouts=(replace(whole.fanouts[0], outside=3),),
    )
    u = unit(shared, 16)
    assert u is not None
    assert u.names == ("ISPAD", "WSPAD", "ISPAD")
    assert u.tile_bytes == inputs.capacity_bits // 16
    swapped = replace(whole, levels=(whole.levels[0], outputs, inputs, weights, whole.levels[4]))
    assert unit(swapped, 16) == unit(whole, 16)
    assert plan(catalog.load("gemm:m=8,n=64,k=64").einsums[0], swapped).why_no_nest == ""
    caches = replace(
        whole,
        levels=(
            whole.levels[0],
            *(
                replace(level, may_keep=whole.levels[0].may_keep, capacity_bits=n * 2**18)
                for n, level in zip((4, 2, 1), whole.levels[1:4], strict=True)
            ),
            whole.levels[4],
        ),
    )
    assert unit(caches, 16).names == ("ISPAD",) * 3


def test_what_the_text_of_a_schedule_says() -> None:
    e = catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0]
    (found,) = mapper.smaug(Problem(arch(), e, "energy"), random.Random(0))
    lines = str(found.mapping).splitlines()
    assert lines[0] == "outside the nest space: the first tile has more rows than the next"
    assert lines[1:7] == [
        "SMAUG convolution of 1 x 56 x 56 x 64, window 3 x 3, stride 1 x 1, padding 1 1 1 1, 64 "
        "outputs; array 8 x 32, vectors of 8",
        "  inputs 1 x 56 x 56 x 64 through ISPAD: DimNH, 1 x 27 x 1 x 1 tiles of 1 x 4 x 56 x 64",
        "  weights 64 x 3 x 3 x 64 through WSPAD: DimN, 3 x 1 x 1 x 1 tiles of 24 x 3 x 3 x 64",
        "  outputs 1 x 56 x 56 x 64 through OSPAD: DimNCH, 1 x 27 x 1 x 3 tiles of 1 x 3 x 56 x 24",
        "for 27 tiles of rows",
        "  for 3 tiles of kernels",
    ]
    made = host_copies(plan(e, arch()))
    assert (found.host_copies, found.host_copy_elems) == (
        sum(c.number for c in made.values()),
        sum(c.elems for c in made.values()),
    )
    assert found.strategy == ""
    (free,) = mapper.smaug(Problem(arch(), e, "energy"), random.Random(0), host_copies_cost=False)
    home, accesses = arch().levels[0], found.host_copy_elems * 16 / arch().levels[0].width_bits
    waits = 2 * accesses / home.bandwidth
    assert found.latency_cycles - free.latency_cycles == pytest.approx(waits)
    assert found.energy_pj - free.energy_pj == pytest.approx(
        accesses * (home.read_pj + home.write_pj) + arch().leak_mw() * waits / arch().clock_ghz
    )
    assert sum(part.energy_pj for part in found.price.parts) == pytest.approx(found.energy_pj)
    turns = replace(arch(), fanouts=(Fanout("ROW", 1, (("A", 3),), (True,), (False,)), *arch().fanouts))
    assert (
        "  for 3 tiles of kernels, 3 accelerators by turns"
        in str(mapper.smaug(Problem(turns, e, "energy"), random.Random(0))[0].mapping).splitlines()
    )


@pytest.mark.parametrize("seed", range(amount(40)))
def test_equal_texts_are_equal_actions(seed: int) -> None:
    """The key of a mapping is its text: machines of a sweep that share it must share its counts."""
    e = layer(random.Random(f"texts {seed}"))
    counts: dict[str, tuple[Count, ...]] = {}
    for spad, pes in product((2048, 4096, 8192, 32768), (2, 4, 8, 16)):
        found = mapper.smaug(Problem(arch(spad=spad, pes=pes), e, "energy"), random.Random(0))
        if not isinstance(found, Infeasible):
            assert counts.setdefault(found[0].mapping_key, found[0].counts) == found[0].counts


def tiny(spad: int) -> Arch:
    """smv with 2 PEs of 2 MACs and scratchpads of a few elements, small enough to enumerate."""
    spec = machine.load("smv")
    given = {
        "kind": "custom",
        "capacity": spad,
        "width_bits": 16,
        "read_pj": 5.0,
        "write_pj": 5.0,
        "leak_mw": 0.0,
        "area_mm2": 0.0,
        "actions_per_cycle": 4.0,
    }
    nodes = [
        replace(n, **given)
        if n.name.endswith("spad")
        else replace(n, dims={"pe": 2, "mac": 2})
        if n.name == "array"
        else n
        for n in spec.nodes
    ]
    return machine.arch(replace(spec, nodes=tuple(nodes), tiling=replace(spec.tiling, align=0)))


@pytest.mark.parametrize(
    "source",
    some(
        [
            "gemm:m=1,n=6,k=6",
            "conv:k=2,c=2,p=4,q=2,r=1,s=1",
            "depthwise:c=4,p=5,q=1,r=2,s=1",
            "pool:c=4,p=4,q=2,r=2,s=1",
        ],
        1,
        3,
    ),
)
def test_a_nest_is_never_below_the_optimum_of_the_ragged_space(source: str) -> None:
    e = catalog.load(source).einsums[0]
    for spad, objective in ((16, "energy"), (16, "latency"), (20, "energy")):
        problem = Problem(tiny(spad), e, objective)
        (found,), (best,) = mapper.smaug(problem, random.Random(0)), enumerated(problem, "imperfect")
        assert found.mapping.nodes
        assert faults(found.mapping, e, problem.arch) == []
        low, high = (
            (one.energy_pj if objective == "energy" else one.latency_cycles) for one in (best, found)
        )
        assert high / low >= 1 - 1e-9


def test_the_table_over_the_optimum_fails_on_a_nest_below_its_floor() -> None:
    e, arch = catalog.load("gemm:m=1,n=6,k=6").einsums[0], replace(tiny(16), overlap="free")
    ((_, floors),) = bench.searched([e, replace(e, name="alike")], arch, 100_000, 1)
    proven = bench.line("net", e, arch, floors)
    assert proven.proven == 2
    assert proven.why == ""
    assert min(proven.energy, proven.latency) >= 1
    assert bench.below([proven]) == []
    low, outside, refused = (
        replace(proven, energy=0.99),
        replace(proven, energy=0.99, why="outside"),
        replace(proven, energy=0.0, latency=0.0, why="too wide"),
    )
    assert bench.below([proven, low, outside, refused]) == [low]
    rows = list(bench.table([proven, outside, refused]))
    assert rows[2].startswith("| net | 3 | 1 |")
    assert "| 1 | 4 of 4 |" in rows[2]
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|")


def test_the_tiling_block_of_a_machine_file_reaches_its_optimizers(tmp_path: Path) -> None:
    e = catalog.load("conv:k=16,c=128,p=16,q=16,r=3,s=3,pad=1").einsums[0]
    text = (machine.MACHINES / "smv.yaml").read_text()
    block = text[text.index("tiling:") :]

    def tiles(given: str) -> tuple[str, tuple[int, ...]]:
        (tmp_path / "m.yaml").write_text(text.replace(block, f"tiling: {given}\n"))
        found = plan(e, machine.arch(machine.load(str(tmp_path / "m.yaml"))))
        assert not isinstance(found, Infeasible)
        inputs = found.schedule.tiling.tensors["inputs"]
        return inputs.label, inputs.tile

    assert tiles("{align: 8}") == ("DimNC", (1, 16, 16, 64))
    assert tiles("{align: 8, macs: 16}") == ("DimNC", (1, 16, 16, 64))
    assert tiles("{align: 8, macs: 48}")[1] == (1, 16, 16, 48)
    assert tiles("{align: 8, preference: [None, DimNH]}") == ("DimNH", (1, 8, 16, 128))
    assert tiles("{align: 8, minimum: {convolution.inputs: [1, kernel, full, 96]}}") == (
        "DimNH",
        (1, 8, 16, 128),
    )
    assert tiles("{align: 48}") == ("DimNC", (1, 16, 16, 32))
