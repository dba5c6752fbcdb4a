"""The vectorised twin gives the scalar path's numbers."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.nest import Loop
from dse.sim.cost import bits_of, price
from dse.sim.counts import count, footprints
from dse.sim.kernels import cost_many, count_many, mapping_at, tables
from tests.nests import random_case


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


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_twin_equals_scalar_path(seed: int) -> None:
    rng = Random(seed)
    e, arch, nest = random_case(rng)
    options = random_options(rng, e, nest)
    choices = np.array([[rng.randrange(len(options[rank])) for rank, _ in e.extents] for _ in range(6)])
    compiled = tables(nest, e, arch, options)
    total, busiest, held, moving = count_many(compiled, choices)
    costs = cost_many(compiled, e, arch, choices)
    bits = bits_of(e, arch)
    sparse = any(p.density != 1 for p in e.inputs)
    for c, choice in enumerate(choices):
        mapping = mapping_at(nest, options, dict(zip((rank for rank, _ in e.extents), choice, strict=True)))
        rows = count(mapping, e, arch)
        scalar = {(row.level, row.tensor, row.action): (row.elems, row.busiest_elems) for row in rows}
        for k, row in enumerate(compiled.rows):
            want, got = scalar.get(row, (0, busiest[c, k])), (total[c, k], busiest[c, k])
            assert np.allclose(want, got, rtol=1e-12) if sparse else want == got
        assert [f.elems for f in footprints(mapping, e)] == held[c].tolist()
        assert [f.moving for f in footprints(mapping, e)] == moving[c].tolist()
        p = price(rows, e, arch)
        assert np.isclose(costs.energy_pj[c], p.energy_pj, rtol=1e-12) and np.isclose(costs.latency_cycles[c], p.latency_cycles, rtol=1e-12)
        in_level = {level.name: 0 for level in arch.levels}
        for f in footprints(mapping, e):
            twice = next(level.double_buffer for level in arch.levels if level.name == f.level) and f.moving
            in_level[f.level] += f.elems * bits[f.tensor] * (1 + twice)
        assert costs.held_bits[c].tolist() == list(in_level.values())
