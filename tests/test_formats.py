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

from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search
from dse.mapping.nest import parse
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound
from hw import machine, space
from hw.arch import Arch, Compute, Fanout, Level
from hw.columns import Table
from tests.amount import amount
from tests.nests import random_arch, random_einsum, random_mapping
from tests.oracle import kept
from tests.prove.mappers import answers, problem_of
from tests.test_counts import unlike
from workloads.einsum import Einsum, WorkloadError, canonical_key, einsum
from workloads.text import load

FORMATS = ("coo", "rle", "bitmask", "1:2", "2:4", "3:4", "1:8")


def stored_as(rng: Random, e: Einsum) -> Einsum:
    """The einsum with its operands with zeros, or the first one, in another format; widths at random."""

    def other(p, form):  # type: ignore[no-untyped-def]
        n, _, m = form.partition(":")
        density = int(n) / int(m) if m else p.density if p.density < 1 else rng.choice([0.1, 0.3, 0.5, 0.9])
        plain = replace(p, format=form, density=density, index_bits=0, pointer_bits=0)
        wider = rng.choice([0, 0, 1, 2]) if plain.index_bits else 0
        narrow = form == "rle" and rng.random() < 0.7
        bits = rng.choice([1, 2, 3]) if narrow else plain.index_bits + wider
        return replace(plain, index_bits=bits)

    chosen = [i for i, p in enumerate(e.inputs) if p.density < 1] or [0]
    return replace(
        e, inputs=tuple(other(p, rng.choice(FORMATS)) if i in chosen else p for i, p in enumerate(e.inputs))
    )


@settings(max_examples=amount(300, 30), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    rng = Random(f"formats/{seed}")
    e, arch = random_einsum(rng, ("spmm", "spmv", "gemm", "conv1d", "bmm")), random_arch(rng)
    e = stored_as(rng, e)
    assert unlike(f"seed {seed}", e, arch, random_mapping(rng, e, arch)) == ""


def formats_of(seed: int, most: int) -> Problem:
    """A problem with operands in such formats."""
    rng = Random(f"formats/{seed}")
    while True:
        problem = problem_of(rng.randrange(10**6) * 8 + 7, most)  # of the group "sparse"
        if problem.einsum.inputs[0].dims and problem.arch.levels[0].capacity_bits is None:
            return replace(problem, einsum=stored_as(rng, problem.einsum))


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
    "{format: {Y: coo}}": "tensor Y cannot be coo; an output is dense or csr",
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
    assert len({cost.energy_pj for cost in found.values()}) == 1


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
