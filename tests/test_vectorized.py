"""The vectorised twin gives the scalar path's numbers."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Loop
from dse.sim.counts.counts import footprints
from dse.sim.counts.vectorized import cost_many, mapping_at, tables
from dse.sim.einsum.cost import price_mapping
from tests.amount import amount
from tests.nests import ported, random_case, widened
from tests.oracle import width
from tests.streams import described


def random_options(rng: Random, e, nest) -> dict[str, list[list[int]]]:
    """Ragged tile sizes for the loops of every rank, each at most the one outside of it, the last 1."""
    options = {}
    for rank, extent in e.extents:
        depth = sum(isinstance(node, Loop) and node.rank == rank for node in nest.nodes)
        options[rank] = []
        for _ in range(rng.randint(1, 4)):
            sizes, left = [], extent
            for _ in range(depth - 1):
                left = rng.randint(1, left)
                sizes.append(left)
            options[rank].append([*sizes, *[1] * (depth > 0)])
    return options


@settings(max_examples=amount(150))
@given(st.integers(0, 2**32))
def test_twin_equals_scalar_path(seed: int) -> None:
    rng = Random(seed)
    e, arch, nest = random_case(rng)
    arch = described(rng, arch) if seed % 3 == 0 else ported(widened(arch, e, 2), e, 2)
    options = random_options(rng, e, nest)
    choices = np.array([[rng.randrange(len(options[rank])) for rank, _ in e.extents] for _ in range(6)])
    costs = cost_many(tables(nest, e, arch, options), e, arch, choices)
    for c, choice in enumerate(choices):
        mapping = mapping_at(nest, options, dict(zip((rank for rank, _ in e.extents), choice, strict=True)))
        p = price_mapping(mapping, e, arch)
        assert np.isclose(costs.energy_pj[c], p.energy_pj, rtol=1e-12)
        assert np.isclose(costs.latency_cycles[c], p.latency_cycles, rtol=1e-12)
        in_level = {level.name: 0 for level in arch.levels}
        for f in footprints(mapping, e, arch):
            twice = (
                next(level.double_buffer for level in arch.levels if level.name == f.level) and f.is_refilled
            )
            in_level[f.level] += f.elems * width(f.level, f.tensor, e, arch) * (1 + twice)
        assert costs.occupied_bits[c].tolist() == list(in_level.values())
