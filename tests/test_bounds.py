"""Lower bounds never above a cost; compulsory traffic reached when everything fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.nest import Loop, Mapping, Store
from dse.sim import bounds
from dse.sim.cost import price
from dse.sim.counts import count
from hw.arch import Arch, Compute, Level
from tests.nests import random_arch, random_case, random_einsum, rich_case
from workloads.einsum import Einsum, einsum


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([random_case, rich_case]))
def test_bound_is_not_above_the_cost_of_any_mapping(seed: int, case: Callable[[Random], tuple[Einsum, Arch, Mapping]]) -> None:
    e, arch, mapping = case(Random(seed))
    p = price(mapping, count(mapping, e, arch), e, arch)
    assert bounds.energy_pj(e, arch) <= p.energy_pj * (1 + 1e-9)
    assert bounds.latency_cycles(e, arch) <= p.latency_cycles * (1 + 1e-9)


def test_a_compressed_output_moves_less_than_its_elements() -> None:
    """20 words were the bound of a copy whose output is compressed to 2 nonzeros and their columns in 2 rows."""
    e = einsum("C[a,b] = A[a,b]", {"a": 2, "b": 10})
    e = replace(e, output=replace(e.output, density=0.1, format="csr"))
    arch = Arch("copy", (Level("DRAM", None, 8, 0.0, 1.0, bypass=False), Level("GLB", None, 8, 0.0, 0.0)), (), Compute(0.0, 0.0), 1.0, 8)
    mapping = Mapping((*(Store(level.name, p.tensor) for level in arch.levels for p in e.tensors()), Loop("a", 1), Loop("b", 1)))
    assert bounds.energy_pj(e, arch) <= price(mapping, count(mapping, e, arch), e, arch).energy_pj == pytest.approx(2 * 2 + 2)


def test_a_compressed_input_moves_all_that_is_stored() -> None:
    """5 nonzeros with their columns and 10 rows, whoever reads them; compute asks for no more."""
    e = einsum("Y[m] += A[m,k] * X[k]", {"m": 10, "k": 4}, density={"A": 1 / 8}, format={"A": "csr"})
    assert bounds.words(e.inputs[0], e) == bounds.needs(e).asked[0] == 2 * 5 + 10
    arch = Arch("lone", (Level("DRAM", None, 8, 1.0, 0.0, bypass=False),), (), Compute(0.0, 0.0), 1.0, 8)
    mapping = Mapping((*(Store("DRAM", t) for t in "YAX"), Loop("m", 1), Loop("k", 1)))
    found = {(part.tensor, part.action): part.energy_pj for part in price(mapping, count(mapping, e, arch), e, arch).parts}
    assert bounds.energy_pj(e, arch) <= sum(found.values()) and found["A", "read"] == 20


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
        assert moved - refilled >= bounds.words(p, e) * (1 - 1e-12)
        assert moved - refilled == pytest.approx(compulsory(p, e.sizes()), rel=1e-12)


def compulsory(p, sizes) -> float:
    """Clipped hull of the whole einsum, counted from its index ranges; CSR: 2 * nnz + rows."""
    lengths = []
    for dim in p.dims:
        low, high = dim.offset, dim.offset + sum(c * (sizes[rank] - 1) for rank, c in dim.terms)
        lengths.append(len(range(max(low, 0), min(high, dim.size - 1) + 1)))
    return prod(lengths) if p.format == "dense" else 2 * p.density * prod(lengths) + prod(lengths[:-1])
