"""Mappings per CPU second and core: the vectorised path against the scalar one, same mappings, tables
included, compile excluded.

python -m bench.evaluator [MAPPINGS]
"""

from __future__ import annotations

import sys
import time
from itertools import product

import numpy as np

from dse.mapping.nest import Mapping, parse
from dse.sim.counts.vectorized import TileOptions, cost_many, mapping_at, tables
from dse.sim.einsum.cost import price_mapping
from hw import machine
from hw.arch import Arch
from workloads import catalog
from workloads.einsum import Einsum

GEMM = """store DRAM A B C
for m tile 1
  for n tile 1
    store GLB A B C
    for k tile 1
      parfor m tile 1 over X
        parfor n tile 1 over Y
          store RF A B C
          for m tile 1
            for n tile 1
              for k tile 1
                mac"""
CONV = """store DRAM I W O
for k tile 1
  for p tile 1
    store GLB I W O
    for q tile 1
      for c tile 1
        parfor c tile 1 over X
          parfor k tile 1 over Y
            store RF I W O
            for p tile 1
              for q tile 1
                for r tile 1
                  for s tile 1
                    mac"""


def options_of(e: Einsum, nest: Mapping) -> TileOptions:
    """Every ragged choice out of powers of two, three and seven, per rank."""
    found = {}
    for rank, extent in e.extents:
        depth = sum(getattr(node, "rank", None) == rank for node in nest.nodes)
        sizes = sorted(
            {s for s in (1, 2, 3, 4, 7, 8, 14, 16, 28, 32, 56, 64, 100, 128) if s <= extent}, reverse=True
        )
        chains = [
            chain
            for chain in product(sizes, repeat=max(depth - 1, 0))
            if list(chain) == sorted(chain, reverse=True)
        ]
        found[rank] = [(*chain, 1) if depth else () for chain in chains]
    return found


def measure(name: str, e: Einsum, nest: Mapping, arch: Arch, mappings: int) -> None:
    options = options_of(e, nest)
    rng = np.random.default_rng(1)
    choices = np.column_stack([rng.integers(0, len(options[rank]), mappings) for rank, _ in e.extents])
    cost_many(tables(nest, e, arch, options), e, arch, choices[:10])
    started = time.process_time()
    costs = cost_many(tables(nest, e, arch, options), e, arch, choices)
    fast = mappings / (time.process_time() - started)
    sample = [mapping_at(nest, options, dict(zip(options, row, strict=True))) for row in choices[:300]]
    started = time.process_time()
    scalar = [price_mapping(mapping, e, arch).energy_pj for mapping in sample]
    slow = len(sample) / (time.process_time() - started)
    assert np.allclose(scalar, costs.energy_pj[: len(sample)], rtol=1e-12)
    size = np.prod([float(len(chains)) for chains in options.values()])
    print(
        f"{name}: {fast:,.0f} mappings/s vectorised, {slow:,.0f} scalar, ratio {fast / slow:,.0f}; "
        f"{mappings:,} drawn of {size:.2g}, equal costs on {len(sample)}"
    )


def main(mappings: int) -> None:
    arch = machine.load_arch("a3")
    measure(
        "GEMM 128x128x128", catalog.load("gemm:m=128,n=128,k=128").einsums[0], parse(GEMM), arch, mappings
    )
    measure(
        "conv 64x64x56x56x3x3",
        catalog.load("conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1").einsums[0],
        parse(CONV),
        arch,
        mappings,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
