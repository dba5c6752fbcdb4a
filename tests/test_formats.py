"""Formats of operands with zeros beside csr: coordinates, runs of zeros, bit masks, N of M neighbours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search
from dse.mapping.nest import Infeasible, format_faults, parse
from dse.sim.counts.counts import count
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.cost import price
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound
from dse.study import study
from hw import machine, space
from hw.arch import Arch, Compute, Fanout, Level, Stored
from hw.columns import Table
from tests.amount import amount
from tests.nests import (
    RESULTS,
    compressed_result,
    in_a_format,
    in_other_formats,
    packed,
    random_arch,
    random_einsum,
    random_mapping,
)
from tests.oracle import kept
from tests.prove.mappers import answers, formatted_of, priced_all, problem_of, with_formats
from tests.prove.nests import machine_case
from tests.test_counts import unlike
from workloads.einsum import WorkloadError, canonical_key, einsum
from workloads.text import load


@settings(max_examples=amount(300, 30), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    rng = Random(f"formats/{seed}")
    e, arch = random_einsum(rng, ("spmm", "spmv", "gemm", "conv1d", "bmm")), random_arch(rng)
    e = in_a_format(rng, e)
    assert unlike(f"seed {seed}", e, arch, random_mapping(rng, e, arch)) == ""


def formats_of(seed: int, most: int) -> Problem:
    """A problem with operands in such formats."""
    rng = Random(f"formats/{seed}")
    while True:
        problem = problem_of(rng.randrange(10**6) * 8 + 7, most)  # of the group "sparse"
        if problem.einsum.inputs[0].dims and problem.arch.levels[0].capacity_bits is None:
            return replace(problem, einsum=in_a_format(rng, problem.einsum))


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in answers(seed, "formats", formats_of(seed, 2000)) for line in one.wrong] == []


@pytest.mark.parametrize("seed", range(4))
def test_the_search_counts_sums_of_pes_at_different_nonzeros_as_the_evaluator(seed: int) -> None:
    """PEs that do not reduce add to one element of a memory outside, which only the first of them need not
    read; each of those that reduce begins anew.
    """
    rng = Random(f"sums/{seed}")
    sizes, density = {"m": rng.choice([1, 2]), "k": rng.choice([4, 6, 8])}, rng.choice([0.3, 0.5, 0.75])
    e = einsum("Y[m] += A[m,k] * X[k]", sizes, format={"A": "coo"}, density={"A": density})
    acc = Level("ACC", 16, 8, 1.0, 1.0, may_keep=("output",))
    array = Fanout("PE", 2, (("X", 2), ("Y", 2)), (True, True), (seed % 2 == 0, False))
    levels = (Level("DRAM", None, 8, 20.0, 20.0, bypass=False), acc)
    problem = Problem(Arch("sums", levels, (array,), Compute(1.0, 1.0), 1.0, 8, overlap="free"), e, "edp")
    found = search(problem, "perfect")
    assert found.mapping
    cost = einsum_cost(problem, found.mapping)
    assert isinstance(cost, EinsumCost)
    assert cost.latency_cycles < e.points() * density  # several PEs work
    assert found.lower_bound == pytest.approx(cost.energy_pj * cost.latency_cycles, rel=1e-9)


def test_bits_by_hand() -> None:
    """Of 8 x 16 elements of 8 bits, a quarter nonzero (32)."""
    for form, more, bits in (
        ("dense", {}, 8 * 128),
        ("csr", {}, 32 * (8 + 4) + 8 * 6),
        ("coo", {}, 32 * (8 + 3 + 4)),
        ("bitmask", {}, 32 * 8 + 128),
        # of runs of zeros of 4 or more a zero each: 0.75^4 = 0.3164, 32 / (1 - 0.3164) = 46.8
        ("rle", {"index_bits": {"A": 2}}, 47 * (8 + 2)),
        ("1:4", {}, 32 * (8 + 2)),
    ):
        density = {} if ":" in form else {"density": {"A": 0.25}}
        e = einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 16}, format={"A": form}, **density, **more)
        assert e.inputs[0].stored_bits(8) == bits, form
        assert e.inputs[0].density == 0.25
        if form != "dense":
            per_elem, per_row = e.inputs[0].compressed_words(8)
            assert 8 * (128 * per_elem + 8 * per_row) == pytest.approx(bits, rel=0.01)
    few = einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 16}, format={"A": "rle"}, density={"A": 0.01})
    assert few.inputs[0].stored_density() == pytest.approx(float(kept(0.01, "rle", 5)), rel=1e-9)


def test_einsums_in_other_formats_are_told_apart() -> None:
    found = {
        canonical_key(einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 16}, format={"A": form}, **more))
        for form in ("csr", "coo", "rle", "bitmask", "2:4")
        for more in [{} if ":" in form else {"density": {"A": 0.5}}]
    }
    assert len(found) == 5


def test_a_format_needs_no_quotes_in_yaml(tmp_path: Path) -> None:
    """YAML reads 2:4 as a number of base 60."""
    text = "{extents: {m: 8, k: 16}, einsums: [{text: 'Y[m] += A[m,k] * X[k]', format: {A: FORM}}]}"
    (tmp_path / "bare.yaml").write_text(text.replace("FORM", "2:4"))
    (tmp_path / "quoted.yaml").write_text(text.replace("FORM", "'2:4'"))
    bare, quoted = (load(tmp_path / f"{name}.yaml").einsums for name in ("bare", "quoted"))
    assert bare == quoted
    assert bare[0].inputs[0].format == "2:4"


FAULTS = {
    "{format: {A: '4:2'}}": "format of tensor A is 4:2; of M neighbours N, fewer than M, are nonzero",
    "{format: {A: '2:64'}}": "format of tensor A is 2:64, and its rows have",
    "{format: {A: '2:4'}, density: {A: 0.3}}": "tensor A is 2:4 and has density 0.3; leave density out",
    "{format: {A: 'ellpack'}}": "it must be dense, csr, coo, rle, bitmask, or N:M as 2:4",
    "{format: {Y: coo}}": "tensor Y cannot be coo; its zeros are those of inputs",
    "{format: {A: bitmask}, index_bits: {A: 4}}": "only a csr, coo, rle or N:M tensor has them",
    "{format: {A: '2:4'}, pointer_bits: {A: 4}}": "only a csr tensor has them",
    "{format: {A: '2:4'}, index_bits: {A: 1}}": "index_bits of tensor A is 1",
}


@pytest.mark.parametrize("more", FAULTS)
def test_faults_are_one_line(more: str) -> None:
    with pytest.raises(WorkloadError) as found:
        einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 16}, **yaml.safe_load(more))
    assert FAULTS[more] in str(found.value)
    assert "\n" not in str(found.value)


def test_gated_zeros_take_cycles_and_no_energy() -> None:
    """2:4 weights are skipped, inputs of density 0.4 gated: of 4,096 products on 4 PEs 0.2 compute, and 0.5
    take their time.
    """
    e = einsum(
        "C[m,n] += A[m,k] * B[k,n]", {"m": 16, "n": 16, "k": 16}, density={"A": 0.4}, format={"B": "2:4"}
    )
    level = Level("DRAM", None, 8, 1.0, 1.0, bypass=False)
    array = Fanout("PE", 1, (("X", 4),), (True,), (True,))
    one = parse("store DRAM A B C\nparfor m tile 4 over X\nfor m tile 1\nfor n tile 1\nfor k tile 1\nmac")
    found = {}
    for gates in ((), ("input",), ("weight",), ("input", "weight")):
        arch = Arch("gated", (level,), (array,), Compute(1.0, 1.0, gates=gates), 1.0, 8, overlap="free")
        cost = einsum_cost(Problem(arch, e, "latency"), one)
        assert isinstance(cost, EinsumCost)
        assert lower_bound(Problem(arch, e, "latency")) <= cost.latency_cycles * (1 + 1e-12)
        found[gates] = cost
        best = optimal(Problem(arch, e, "latency"))
        assert isinstance(best, list)
        assert best[0].latency_cycles == pytest.approx(cost.latency_cycles)
    assert {gates: round(cost.latency_cycles, 6) for gates, cost in found.items()} == {
        (): 1024 * 0.2,
        ("input",): 1024 * 0.5,
        ("weight",): 1024 * 0.4,
        ("input", "weight"): 1024,
    }
    reads = {
        gates: {row.tensor: row.elems for row in cost.counts if row.action == "read"}
        for gates, cost in found.items()
    }
    # DRAM stands outside of the array: PEs that gate A's zeros stay in step and share B, 10 bits a nonzero
    assert reads[()] == pytest.approx({"A": 819.2, "B": 4096 * 0.5 * 10 / 8, "C": reads[()]["C"]})
    assert reads["input",] == pytest.approx({"A": 2048, "B": 1024 * 0.5 * 10 / 8, "C": 2048 - 256})
    assert reads["input", "weight"] == pytest.approx({"A": 4096, "B": 640, "C": 4096 - 256})
    assert {row.elems for cost in found.values() for row in cost.counts if row.action == "compute"} == {819.2}


def test_memories_of_a_pe_are_not_read_at_gated_zeros() -> None:
    """A of density 0.25 in registers of the PEs, and in the buffer outside, which sends every word;
    C drains from both.
    """
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 8}, density={"A": 0.25})
    names = ("DRAM", "BUF", "REG")
    levels = tuple(Level(name, None, 8, 1.0, 1.0, bypass=name != "DRAM") for name in names)
    array = Fanout("PE", 2, (("X", 4),), (True,), (True,))
    arch = Arch("gated", levels, (array,), Compute(1.0, 1.0, gates=("input",)), 1.0, 8, overlap="free")
    outside, inside = "store DRAM A B C\nstore BUF A B C\n", "for m tile 1\nfor k tile 1\nmac"
    for level, text, reads, pes in (
        ("REG", "parfor n tile 1 over X\nstore REG A B C\n", {"A": 32, "B": 32, "C": 32 - 16 + 16}, 4),
        ("BUF", "parfor n tile 1 over X\n", {"A": 32, "B": 128, "C": 128 - 16 + 16}, 1),
    ):
        nest = parse(outside + text + inside)
        rows = [row for row in count(nest, e, arch) if row.action == "read" and row.level == level]
        assert {row.tensor: row.elems for row in rows} == reads
        assert {row.tensor: row.busiest_elems * pes for row in rows} == reads
        assert unlike("gated", e, arch, nest) == ""


@settings(max_examples=amount(400, 40), deadline=None)
@given(st.integers(0, 2**32))
def test_gated_zeros_never_cost_more_than_values(seed: int) -> None:
    rng = Random(f"gated/{seed}")
    arch, plain = random_arch(rng), random_einsum(rng, ("gemm", "conv1d", "bmm", "spmv"))
    arch = replace(arch, compute=replace(arch.compute, gates=rng.choice([("input",), ("input", "weight")])))
    dense, holey = (
        plain.map_projections(
            lambda p, n=n: replace(
                p, format="dense", density=n if p is not plain.output else 1.0, index_bits=0, pointer_bits=0
            )
        )
        for n in (1.0, rng.choice([0.1, 0.3, 0.7]))
    )
    if len(arch.compute.gates) == 1:
        holey = replace(holey, inputs=(holey.inputs[0], *dense.inputs[1:]))
    mapping = random_mapping(rng, dense, arch)
    assert unlike(f"seed {seed}", holey, arch, mapping) == ""
    full, gated = (price(count(mapping, e, arch), e, arch) for e in (dense, holey))
    assert gated.energy_pj <= full.energy_pj * (1 + 1e-12)
    assert gated.latency_cycles <= full.latency_cycles * (1 + 1e-12)


def test_bounds_of_many_machines_that_gate_are_those_of_each() -> None:
    spec = machine.load("edge_array")
    spec = replace(spec, nodes=(*spec.nodes[:-1], replace(spec.nodes[-1], gates=("input",))))
    own = space.parse(spec, {"array.x": [2, 16]})
    built, columns = Table(own).columns(np.arange(2))
    e = einsum(
        "C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 64, "k": 64}, density={"A": 0.3}, format={"B": "2:4"}
    )
    pj, cycles = bound_kernels.sequential([(e, 1.0)], columns)
    alone = [
        bounds.sequential([(e, 1.0)], a)
        for a in map(partial(space.decode, own), range(2))
        if isinstance(a, Arch)
    ]
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == alone
    assert built.all()


def test_masks_take_capacity_in_the_search() -> None:
    """A row of A has 4 values and 8 bits of mask: 40 bits, too many for a register of 32."""
    e = einsum(
        "C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 8}, format={"A": "bitmask"}, density={"A": 0.5}
    )
    levels = (
        Level("DRAM", None, 8, 100.0, 100.0, bypass=False),
        Level("ACC", 8, 8, 1.0, 1.0, may_keep=("output",), bypass=False),
        Level("REG", 32, 8, 1.0, 1.0, may_keep=("input",)),
    )
    arch = Arch("masks", levels, (), Compute(1.0, 1.0), 1.0, 8, overlap="free")
    told = answers(0, "formats", Problem(arch, e, "energy"))
    assert [line for one in told for line in one.wrong] == []
    assert all(one.proven for one in told)


# Formats of single memories


@settings(max_examples=amount(600, 25), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_in_formats_of_single_memories_are_those_of_a_walk(seed: int) -> None:
    """Also of results in every format; no bound is above the cost."""
    rng = Random(f"formats of levels/{seed}")
    if rng.random() < 0.5:
        e = compressed_result(rng, rng.choice([*RESULTS]), 5)
        e = in_other_formats(rng, e) if rng.random() < 0.7 else e
    else:
        e = in_a_format(rng, random_einsum(rng, ("spmm", "spmv", "gemm", "conv1d", "bmm")))
    plain = random_arch(rng)
    arch = packed(plain, e, rng) if rng.random() < 0.8 else plain
    if any(format_faults(e, arch.levels)):
        return
    mapping = random_mapping(rng, e, arch)
    assert unlike(f"seed {seed}", e, arch, mapping) == ""
    cost = einsum_cost(Problem(arch.unbounded(), e, "energy"), mapping)
    assert isinstance(cost, EinsumCost)
    energy, cycles = bounds.lower_bounds([e], arch)[0]
    assert energy <= cost.energy_pj * (1 + 1e-9)
    assert cycles <= cost.latency_cycles * (1 + 1e-9)


def test_counts_on_random_machine_files_are_those_of_a_walk() -> None:
    """Machine files with some of all that they may have: widths, ports, shared memories, gates."""
    cases = ((seed, machine_case(seed)) for seed in range(amount(160)))
    assert [line for seed, case in cases if (line := unlike(f"machine {seed}", *case))] == []


@settings(max_examples=amount(60, 6), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_in_formats_of_single_memories_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in with_formats(seed) for line in one.wrong] == []


@pytest.mark.parametrize("seed", [76, 139])
def test_bounds_where_zeros_are_gated_are_not_above_the_least_energy(seed: int) -> None:
    """PEs at gated zeros stay in step: one read serves all that share a word."""
    problem = replace(formatted_of(seed), objective="energy")
    least = search(problem, "imperfect_spatial").lower_bound
    assert bounds.lower_bounds([problem.einsum], problem.arch)[0][0] <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", [130, 180])
def test_the_search_skips_first_reads_of_gated_sums_as_the_evaluator_does(seed: int) -> None:
    """Memories of a PE skip those of products, memories outside of arrays those of all iterations."""
    problem = replace(formatted_of(seed), objective="energy")
    assert search(problem, "perfect").lower_bound == pytest.approx(priced_all(problem, "perfect").cost[0])


def test_answers_where_zeros_are_gated_are_those_of_an_enumeration() -> None:
    """A memory of a PE is not read at gated zeros, those outside of arrays are."""
    assert [line for one in with_formats(14) for line in one.wrong] == []


PACKED = """
name: packed
clock_mhz: 1000
word_bits: 8
overlap: free
nodes:
- {memory: dram, kind: custom, width_bits: 8, read_pj: 100, write_pj: 100, leak_mw: 0, area_mm2: 0,
   actions_per_cycle: inf}
- {memory: gbuf, kind: custom, capacity: 56 B, width_bits: 8, read_pj: 2, write_pj: 2, leak_mw: 0,
   area_mm2: 0, actions_per_cycle: inf%s}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, merge_pj: 1, leak_mw: 0, area_mm2: 0%s}
"""
SPMM = "Y[m,n] += A[m,k] * X[k,n]"


def packed_file(of_gbuf: str = "", of_mac: str = "") -> tuple[Arch | None, list[str]]:
    spec, lines = machine.parse(yaml.safe_load(PACKED % (of_gbuf, of_mac)), "packed")
    return (None if lines else machine.arch(spec)), lines


def test_a_mask_on_chip_above_csr_by_hand() -> None:
    """Of 8 x 16 elements a quarter nonzero, 432 bits as csr, 384 as bitmask; compute reads the mask whole."""
    sizes, sparse = {"m": 8, "k": 16, "n": 2}, {"density": {"A": 0.25}, "format": {"A": "csr"}}
    e = einsum(SPMM, sizes, **sparse)
    nest = parse("store DRAM A X Y\nstore GBUF A\nfor n tile 1\nfor m tile 1\nfor k tile 1\nmac")
    for given_, inside in (("", 432), (", formats: {input: bitmask}", 384), (", formats: {input: csr}", 432)):
        arch, _ = packed_file(given_)
        assert arch
        found = {row.key: 8 * row.elems for row in count(nest, e, arch) if row.tensor == "A"}
        assert found["DRAM", "A", "read"] == pytest.approx(432)
        assert found["GBUF", "A", "write"] == pytest.approx(inside)
        assert found["GBUF", "A", "read"] == pytest.approx(2 * inside)
    arch, _ = packed_file(", formats: {input: dense}")
    assert arch
    assert einsum_cost(Problem(arch, e, "energy"), nest) == Infeasible("GBUF", 128, 56, e.name)


def test_links_carry_the_format_of_the_memory_outside() -> None:
    """A leaves DRAM as csr, 432 bits, and is a mask in the registers of the PEs, 384."""
    e = einsum(SPMM, {"m": 8, "k": 16, "n": 2}, density={"A": 0.25}, format={"A": "csr"})
    for outer, bits in ((), 432), ((Stored("input", "coo"),), 32 * 15):
        levels = (
            Level("DRAM", None, 8, 1.0, 1.0, bypass=False),
            Level("GBUF", None, 8, 1.0, 1.0, formats=outer),
            Level("REGF", None, 8, 1.0, 1.0, formats=(Stored("input", "bitmask"),)),
        )
        array = Fanout("PE", 2, (("Y", 1), ("X", 1)), (True, True), (True, True), endpoint_pj=1.0)
        arch = Arch("links", levels, (array,), Compute(1.0, 1.0), 1.0, 8, overlap="free")
        nest = parse(
            "store DRAM A X Y\nstore GBUF A\nstore REGF A\nfor n tile 1\nfor m tile 1\nfor k tile 1\nmac"
        )
        cost = einsum_cost(Problem(arch, e, "energy"), nest)
        assert isinstance(cost, EinsumCost)
        moved = {(p.level, p.tensor, p.action): p.actions for p in cost.price.parts}
        assert moved["PE", "A", "endpoint"] == pytest.approx(bits)
        assert moved["REGF", "A", "write"] == pytest.approx(384 / 8)


FAULTY = {
    ", formats: {input: zip}": "gives input the format zip",
    ", formats: {inputs: csr}": "names inputs",
    ", formats: {input: {format: dense, index_bits: 4}}": "dense has none; leave it out",
    ", formats: {input: csr}, may_keep: [weight]": "is of a tensor that may not stand there",
    ", formats: {input: csr}, bits: {input: 4}": "leave one of both out",
    ", formats: {input: csr}, burst: 8 B": "lines, rows and banks are counted for tensors in one format",
}


@pytest.mark.parametrize("given_", FAULTY)
def test_faults_of_machines_are_one_line(given_: str) -> None:
    _, lines = packed_file(given_)
    assert any(FAULTY[given_] in line and "\n" not in line for line in lines), lines


def test_results_beside_lockstep_and_the_outermost_memory_are_refused() -> None:
    _, lines = packed_file(", formats: {output: csr}", ", lockstep: true")
    assert len(lines) == 1
    assert "gbuf.formats.output stands beside mac.lockstep" in lines[0]
    text = PACKED.replace("memory: dram,", "memory: dram, formats: {input: csr},") % ("", "")
    _, lines = machine.parse(yaml.safe_load(text), "packed")
    assert len(lines) == 1
    assert "dram.formats cannot be" in lines[0]


def test_tensors_that_a_format_says_nothing_of_are_refused_in_one_line() -> None:
    sizes = {"m": 8, "k": 16, "n": 2}
    for form, more, line in (
        ("{input: '2:4'}", {}, "take csr, coo, rle or bitmask"),
        ("{input: {format: csr, index_bits: 3}}", {}, "index_bits = 3 is too few for A, which needs 4"),
        ("{output: csr}", {"density": {"A": 0.25, "Y": 0.5}}, ""),
        ("{output: csr}", {"density": {"Y": 0.5}}, "its zeros are those of inputs"),
    ):
        e = einsum(SPMM, sizes, **{"density": {"A": 0.25}, **more})
        arch, _ = packed_file(f", formats: {form}")
        assert arch
        lines = list(format_faults(e, arch.levels))
        assert [line in one and "\n" not in one for one in lines] == [True] * bool(line), lines
    padded = einsum("O[p] += I[p+r-1] * F[r]", {"p": 4, "r": 3}, sizes={"I": (4,)}, density={"I": 0.5})
    arch, _ = packed_file(", formats: {input: csr}")
    assert arch
    assert "I cannot be csr; its rows are padded" in next(format_faults(padded, arch.levels), "")


def test_csr_tensors_with_padded_rows_are_refused() -> None:
    """A walk of one tile per product meets 2 * 2 tiles that are all padding, which hold no row and have no
    pointer; a count by tiles has one for each of these rows. Padding around rows is cut like that of dense
    tensors.
    """
    sizes = {"k": 1, "c": 2, "p": 3, "r": 3}
    sparse = {"density": {"I": 0.5}, "format": {"I": "csr"}}
    with pytest.raises(WorkloadError, match="tensor I is csr, and its rows are padded or cropped"):
        einsum("O[k,p] += I[c,p+r-1] * F[k,c,r]", sizes, sizes={"I": (2, 3)}, **sparse)
    levels = tuple(Level(name, None, 8, 1.0, 1.0, bypass=False) for name in ("DRAM", "GBUF"))
    arch = Arch("walked", levels, (), Compute(1.0, 1.0), 1.0, 8, overlap="free")
    nest = parse("store DRAM O I F\nfor p tile 1\nfor r tile 1\nstore GBUF O I F\nfor c tile 1\nmac")
    around = einsum("O[k,p] += I[p+r-1,c] * F[k,c,r]", sizes, sizes={"I": (3, 2)}, **sparse)
    assert unlike("padded around rows", around, arch, nest) == ""


WORKLOAD = """
name: spmm
extents: {m: 8, k: 16, n: 2, d: 3}
einsums:
- {text: "Y[m,n] += A[m,k] * X[k,n]", density: {A: 0.25}}
- {text: "Z[m,d] += Y[m,n] * V[n,d]"}
"""


def test_schedules_refuse_formats_in_one_line_where_there_are_zeros(tmp_path: Path) -> None:
    sparse, dense, on = (tmp_path / name for name in ("sparse.yaml", "dense.yaml", "on.yaml"))
    sparse.write_text(WORKLOAD)
    dense.write_text(WORKLOAD.replace(", density: {A: 0.25}", ""))
    on.write_text(PACKED % (", formats: {input: csr, weight: bitmask}", ""))
    for schedule in ("fused", "gogeta", "residency"):
        with pytest.raises(ValueError, match=r"gbuf\.formats") as fault:
            dse.map(str(sparse), str(on), **{"solver.schedule": schedule})
        assert "\n" not in str(fault.value)
    best, unfused = (
        dse.map(str(sparse), str(on), **{"solver.schedule": one}).energy_pj for one in ("best", "unfused")
    )
    assert best == unfused
    assert dse.map(str(dense), str(on), **{"solver.schedule": "fused"}).energy_pj > 0
    with pytest.raises(ValueError, match=r"has gbuf\.formats, and retention is counted"):
        dse.residency(str(sparse), str(on))


def test_studies_refuse_formats_when_they_are_read(tmp_path: Path) -> None:
    """Where the workload has zeros."""
    (tmp_path / "sparse.yaml").write_text(WORKLOAD)
    (tmp_path / "dense.yaml").write_text(WORKLOAD.replace(", density: {A: 0.25}", ""))
    (tmp_path / "packed.yaml").write_text(PACKED % (", formats: {input: csr}", ""))
    path = tmp_path / "study.yaml"
    for name, schedule, is_refused in (
        ("sparse", "fused", True),
        ("sparse", "unfused", False),
        ("dense", "fused", False),
    ):
        document = {
            "workloads": [f"{name}.yaml"],
            "machine": "packed.yaml",
            "space": {"gbuf.read_pj": [2, 3]},
            "objectives": ["energy_pj", "latency_ns"],
            "solver": {"schedule": schedule},
        }
        path.write_text(yaml.safe_dump(document))
        if is_refused:
            with pytest.raises(
                study.StudyError, match=r"schedule = fused does not count formats .*\.formats"
            ):
                study.load(path)
        else:
            assert study.load(path).workloads


def test_studies_refuse_impossible_formats_when_they_are_read(tmp_path: Path) -> None:
    """Groups that the places of zeros do not have, and indices of too few bits."""
    (tmp_path / "sparse.yaml").write_text(WORKLOAD)
    path, document = tmp_path / "study.yaml", {"workloads": ["sparse.yaml"], "machine": "packed.yaml"}
    document |= {"space": {"gbuf.read_pj": [2, 3]}, "objectives": ["energy_pj", "latency_ns"]}
    path.write_text(yaml.safe_dump(document))
    for formats, line in (
        ('{input: "2:8"}', "gbuf.formats.input = 2:8: A is dense, and not 2:8 of its neighbours are nonzero"),
        (
            "{input: {format: coo, index_bits: 2}}",
            "gbuf.formats.input = coo: index_bits = 2 is too few for A",
        ),
        ("{weight: csr}", ""),
    ):
        (tmp_path / "packed.yaml").write_text(PACKED % (f", formats: {formats}", ""))
        if not line:
            assert study.load(path).workloads
            continue
        with pytest.raises(study.StudyError) as fault:
            study.load(path)
        assert line in str(fault.value)
        assert "\n" not in str(fault.value)


def test_machines_are_told_apart_by_formats_and_bounds_are_those_of_each() -> None:
    e = einsum(SPMM, {"m": 8, "k": 16, "n": 2}, density={"A": 0.25})
    nest = parse("store DRAM A X Y\nstore GBUF A\nfor n tile 1\nfor m tile 1\nfor k tile 1\nmac")
    found, costs = [], []
    for forms in ("{}", "{input: csr}", "{input: rle}", "{input: {format: rle, index_bits: 2}}"):
        text = PACKED.replace("56 B", "512 B") % (f", formats: {forms}", "")
        spec, _ = machine.parse(yaml.safe_load(text), "packed")
        own = space.parse(spec, {"gbuf.read_pj": [2, 0.1]})
        built, columns = Table(own).columns(np.arange(2))
        assert built.all()
        many = bound_kernels.sequential([(e, 2)], columns)
        arches = [space.decode(own, i) for i in range(2)]
        assert list(zip(*many, strict=True)) == [bounds.sequential([(e, 2)], one) for one in arches]
        found.append(arches[0])
        costs.append(einsum_cost(Problem(arches[0].unbounded(), e, "energy"), nest))
    assert len({one.family() for one in found}) == 4
    assert len({one.energy_pj for one in costs if isinstance(one, EinsumCost)}) == 4
    assert len({one.mapping_key for one in costs if isinstance(one, EinsumCost)}) == 4


def test_a_bound_takes_the_format_in_which_compute_reads_least() -> None:
    """Dense in GBUF, compute reads A where it is nonzero: a quarter of an element, in csr six times that."""
    widths = {"index_bits": {"A": 32}, "pointer_bits": {"A": 32}}
    e = einsum(SPMM, {"m": 8, "k": 16, "n": 16}, density={"A": 0.25}, format={"A": "csr"}, **widths)
    text = PACKED.replace("56 B", "4096 B").replace("_pj: 100", "_pj: 3") % (", formats: {input: dense}", "")
    spec, _ = machine.parse(yaml.safe_load(text), "packed")
    (best,) = optimal(Problem(machine.arch(spec), e, "energy"))
    assert bounds.lower_bounds([e], machine.arch(spec))[0][0] <= best.energy_pj
