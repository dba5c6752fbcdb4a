"""The least words of one einsum by every blocking: all loop orders, tiles that divide, tensor by tensor by
hand. Shares nothing with dse/solve/gogeta/rereads.py.

A tile of each tensor stands on chip; it is changed whenever a loop outside of it advances that it depends on,
or that lies outside of one that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from math import inf, prod
from random import Random

from workloads.einsum import Einsum, einsum


def random_product(rng: Random) -> Einsum:
    """Products of two or three tensors over three to five ranks; an addend, a tensor read twice."""
    ranks = "mnkjb"[: rng.randint(3, 5)]
    sizes = {rank: rng.choice((2, 4, 6, 8, 12, 16)) for rank in ranks}
    summed = set(rng.sample(ranks, rng.randint(1, len(ranks) - 2)))
    out = [rank for rank in ranks if rank not in summed]
    inputs = []
    for i in range(rng.choice((2, 2, 3))):
        own = [rank for rank in ranks if rng.random() < 0.6] or [ranks[0]]
        inputs.append(f"T{i}[{','.join(own)}]")
    missing = [
        rank
        for rank in ranks
        if not any(rank in text for text in (*(one.partition("[")[2] for one in inputs), *out))
    ]
    inputs[0] = inputs[0].replace("[", f"[{''.join(f'{rank},' for rank in missing)}")
    if rng.random() < 0.2:
        inputs.append(f"D[{','.join(out)}]")
    return einsum(f"Z[{','.join(out)}] += {' * '.join(inputs)}", sizes)


def least(e: Einsum, room: int) -> float:
    """Words read and sums begun, of the best blocking with so many words on chip; inf: none fits."""
    sizes = e.sizes()
    inputs = [sorted(p.ranks()) for p in e.inputs]
    best = inf
    for tiles in _tilings(sizes):
        if sum(prod(tiles[rank] for rank in own) for own in (*inputs, sorted(e.output.ranks()))) > room:
            continue
        for order in permutations(rank for rank in sizes if tiles[rank] < sizes[rank]):
            fetched = sum(_changes(own, order, sizes, tiles) for own in inputs)
            best = min(best, fetched + _changes(sorted(e.output.ranks()), order, sizes, tiles))
    return best


def _tilings(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in sizes.values()]
    for tiles in product(*divisors):
        yield dict(zip(sizes, tiles, strict=True))


def _changes(own: list[str], order: tuple[str, ...], sizes: dict[str, int], tiles: dict[str, int]) -> int:
    """Elements that come in: a tile per trip of all loops down to the innermost one that the tensor depends
    on.
    """
    seen = [i for i, rank in enumerate(order) if rank in own]
    outside = order[: seen[-1] + 1] if seen else ()
    return prod(tiles[rank] for rank in own) * prod(sizes[rank] // tiles[rank] for rank in outside)
