"""Lower bounds never above a cost; compulsory traffic reached when everything fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Loop, Mapping, Store
from dse.sim.counts.counts import Violated, count
from dse.sim.einsum import bounds
from dse.sim.einsum.cost import price_mapping
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.nests import ported, random_arch, random_case, random_einsum, rich_case, widened
from workloads.einsum import Einsum, csr, einsum


@settings(max_examples=amount(500), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([random_case, rich_case]))
def test_bound_is_not_above_the_cost_of_any_mapping(
    seed: int, case: Callable[[Random], tuple[Einsum, Arch, Mapping]]
) -> None:
    e, arch, mapping = case(Random(seed))
    arch = ported(widened(arch, e, 3), e, 3)
    p = price_mapping(mapping, e, arch)
    assert bounds.energy_pj(e, arch) <= p.energy_pj * (1 + 1e-9)
    assert bounds.latency_cycles(e, arch) <= p.latency_cycles * (1 + 1e-9)


def test_a_compressed_output_moves_less_than_its_elements() -> None:
    """20 words were the bound of a copy whose output is compressed to 2 nonzeros and their columns in 2
    rows."""
    e = einsum("C[a,b] = A[a,b]", {"a": 2, "b": 10})
    e = replace(e, output=replace(e.output, density=0.1, format="csr", index_bits=8, pointer_bits=8))
    arch = Arch(
        "copy",
        (Level("DRAM", None, 8, 0.0, 1.0, bypass=False), Level("GLB", None, 8, 0.0, 0.0)),
        (),
        Compute(0.0, 0.0),
        1.0,
        8,
    )
    mapping = Mapping(
        (
            *(Store(level.name, p.tensor) for level in arch.levels for p in e.tensors()),
            Loop("a", 1),
            Loop("b", 1),
        )
    )
    assert bounds.energy_pj(e, arch) <= price_mapping(mapping, e, arch).energy_pj == pytest.approx(2 * 2 + 2)


def test_a_compressed_input_moves_all_that_is_stored() -> None:
    """5 nonzeros with their columns and 10 rows, whoever reads them; compute asks for no more."""
    e = einsum("Y[m] += A[m,k] * X[k]", {"m": 10, "k": 4}, **csr("A", 1 / 8))
    assert (
        bounds.words(e.inputs[0], e, 8)
        == bounds.needs(e, 8).compute_words[0][0]
        == (5 * (8 + 2) + 10 * 3) / 8
    )
    assert bounds.words(e.inputs[0], e, 32) == (5 * (32 + 2) + 10 * 3) / 32
    e = einsum("Y[m] += A[m,k] * X[k]", {"m": 10, "k": 4}, **csr("A", 1 / 8, index_bits=8, pointer_bits=8))
    assert bounds.words(e.inputs[0], e, 8) == bounds.needs(e, 8).compute_words[0][0] == 2 * 5 + 10
    arch = Arch("lone", (Level("DRAM", None, 8, 1.0, 0.0, bypass=False),), (), Compute(0.0, 0.0), 1.0, 8)
    mapping = Mapping((*(Store("DRAM", t) for t in "YAX"), Loop("m", 1), Loop("k", 1)))
    found = {(part.tensor, part.action): part.energy_pj for part in price_mapping(mapping, e, arch).parts}
    assert bounds.energy_pj(e, arch) <= sum(found.values())
    assert found["A", "read"] == 20


def rare(rng: Random) -> tuple[Einsum, Arch]:
    """Where accesses of compute are most of the cost: levels of any prices, lanes that share along some
    dimensions.
    """
    text, sizes = rng.choice(
        [
            ("C[m,n] += A[m,k] * B[k,n]", {"m": 6, "n": 4, "k": 3}),
            ("O[k,p] += I[c,p+r] * W[k,c,r]", {"k": 4, "c": 2, "p": 6, "r": 3}),
            ("O[c,p] += I[c,p+r] * W[c,r]", {"c": 4, "p": 8, "r": 3}),
            ("C[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": 3, "m": 4, "n": 2, "k": 4}),
            ("Y[m] += A[m,k] * X[k]", {"m": 12, "k": 6}),
            ("Z[a,b] += A[a] * B[a,c]", {"a": 3, "b": 8, "c": 6}),
        ]
    )

    def memory(name: str, words: int | None) -> Level:
        read, write = (rng.choice([0.0, 0.01, 0.1, 0.3, 1.0, 3.0]) for _ in range(2))
        return Level(
            name,
            words and 8 * words,
            8,
            read,
            write,
            bypass=name != "DRAM",
            skip_first_read=rng.random() < 0.8,
        )

    def array(name: str, outside: int, dims: str) -> Fanout:
        flags = [tuple(rng.random() < 0.8 for _ in dims) for _ in range(2)]
        return Fanout(name, outside, tuple((dim, rng.choice([2, 3, 4, 6])) for dim in dims), *flags)

    arrays = (
        *([array("cluster", 1, "Z")] if rng.random() < 0.3 else []),
        array("array", 2, rng.choice(["X", "XY"])),
    )
    return einsum(text, sizes), Arch(
        "rare",
        (memory("DRAM", None), memory("GLB", None), memory("REG", rng.randint(1, 8))),
        arrays,
        Compute(0.0, 0.0),
        1.0,
        8,
    )


def test_what_compute_asks_for_is_shared_by_no_more_lanes_than_there_are() -> None:
    """Against optima; all operands together ask for more than each by itself does."""
    more = 0
    for seed in range(amount(120)):
        e, arch = rare(Random(seed))
        try:
            found = optimal(Problem(arch, e, "energy"))
        except Violated as fault:
            pytest.fail(str(fault))
        assert isinstance(found, list)
        least, needs = bounds.energy_pj(e, arch), bounds.needs(e, arch.word_bits)
        assert least <= found[0].energy_pj * (1 + 1e-9), seed
        apart = bounds.lower_bound(replace(needs, common=()), bounds.rates(arch))[0]
        assert apart <= least * (1 + 1e-12)
        more += apart < least * (1 - 1e-9)
    assert more >= amount(6)


@given(st.integers(0, 2**32))
def test_a_mapping_that_holds_everything_moves_the_compulsory_words(seed: int) -> None:
    rng = Random(seed)
    e, arch = random_einsum(rng), random_arch(rng)
    stores = [Store(level.name, p.tensor) for level in arch.levels for p in e.tensors()]
    mapping = Mapping((*stores, *(Loop(rank, 1) for rank, n in e.extents if n > 1)))
    rows = count(mapping, e, arch)
    for p in e.tensors():
        moved = sum(row.elems for row in rows if row.level == "L0" and row.tensor == p.tensor)
        refilled = 0 if arch.levels[0].skip_first_read or p is not e.output else moved // 2
        assert moved - refilled >= bounds.words(p, e, arch.word_bits) * (1 - 1e-12)
        assert moved - refilled == pytest.approx(compulsory(p, e.sizes(), arch.word_bits), rel=1e-12)


def compulsory(p, sizes, word_bits: int) -> float:
    """Clipped hull of the whole einsum, counted from its index ranges; CSR: a value and an index per nonzero,
    a pointer per row.
    """
    lengths = []
    for dim in p.dims:
        low, high = dim.offset, dim.offset + sum(c * (sizes[rank] - 1) for rank, c in dim.terms)
        lengths.append(len(range(max(low, 0), min(high, dim.size - 1) + 1)))
    value = p.bits or word_bits
    return (
        prod(lengths)
        if p.format == "dense"
        else (p.density * prod(lengths) * (value + p.index_bits) + prod(lengths[:-1]) * p.pointer_bits)
        / value
    )


def test_the_bound_writes_each_element_of_a_dense_result_once() -> None:
    e = einsum("T[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 3, "k": 6}, density={"A": 0.01})
    assert bounds.words(e.output, e, 8) == 12
    compressed = replace(e, output=replace(e.output, format="csr", density=0.1))
    assert bounds.words(compressed.output, compressed, 8) < 12
