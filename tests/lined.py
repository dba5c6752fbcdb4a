"""Mappings and layouts of small problems, every pair of them: what the search over both is proven against.
Shares nothing with dse/mapper and dse/solve.

Every mapping of the space (tests/enumeration.py); of every tensor at every described level every order of its
dimensions, each whole or cut once, evenly or not. What a tensor moves in a layout depends on its own loops
and its own layout: where energy is the objective and nothing leaks, the best layouts are those of each
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import inf
from random import Random

from dse.mapping.nest import Infeasible, Mapping, Store, TensorLayout
from dse.sim.einsum.evaluate import Problem, einsum_cost, objective_value
from dse.sim.levels.transfer import dim_names
from hw import machine
from hw.arch import Access, Arch, Level
from tests.enumeration import Order, mappings
from tests.problems import random_problem
from tests.streams import lies, with_layouts
from workloads.einsum import einsum

GROUPS = ("array", "one level", "windows", "two levels")
MOST_LAYOUTS = 24


@dataclass(frozen=True)
class Pair:
    """The least energy of all pairs of a mapping and layouts, and how many mappings fit."""

    energy: float
    mapping: Mapping | None
    mappings: int


def problem(seed: int, most: int = 250, objective: str = "energy") -> tuple[Problem, str]:
    """A small problem on a machine whose levels outside of all lanes move lines, some of them rows, banks or
    lines that are prefetched; nothing leaks; and its tiles.
    """
    rng = Random(seed)
    tiles = rng.choice(["perfect", "perfect", "imperfect_spatial"])
    found = random_problem(rng, rng.choice(GROUPS), tiles, most)
    return replace(found, arch=lined_arch(rng, found.arch), objective=objective), tiles


def stalled(seed: int) -> Problem:
    """A small product or convolution on a machine with caches whose ports are slow: tiles of single buffers
    change at different times, and come over different ports.
    """
    rng = Random(seed)
    arch = machine.load_arch(rng.choice(["cpu_like", "arm_like"]))
    levels = list[Level]()
    for v, level in enumerate(arch.levels):
        small, tiny = 32 * rng.choice([64, 256]), 32 * rng.choice([2, 4, 16])
        room = tiny if v == 3 else level.capacity_bits and rng.choice([level.capacity_bits, small])
        access = Access(32 * rng.choice([1, 1, 2, 4])) if v < 3 else None
        bandwidth = level.bandwidth * rng.choice([0.1, 0.3, 1])
        levels.append(replace(level, capacity_bits=room, access=access, bandwidth=bandwidth))
    text = rng.choice(
        ("C[m,n] += A[m,k] * B[k,n]", "C[n,m] += A[k,m+r] * B[n,k,r]", "C[n,m+r] += A[k,m] * B[n,k,r]")
    )
    sizes = {"m": rng.choice([5, 6, 8]), "n": rng.choice([4, 6, 8]), "k": rng.choice([4, 7, 8])}
    e = einsum(text, sizes | ({"r": 3} if "r" in text else {}))
    return Problem(replace(arch, levels=tuple(levels)), e, "latency")


def lined_arch(rng: Random, arch: Arch) -> Arch:
    border = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    levels = []
    for v, level in enumerate(arch.levels):
        line = 8 * rng.choice([1, 2, 4, 4, 8, 3])
        row = line * rng.choice([2, 4])
        rows = {
            "row_bits": row,
            "row_banks": rng.choice([1, 2]),
            "interleave_bits": row,
            "row_pj": rng.choice([0.0, 30.0]),
        }
        rows = rows if not v and rng.random() < 0.6 else {}
        levels.append(
            replace(level, access=Access(line, **rows))
            if v < border and (not v or rng.random() < 0.5)
            else level
        )
    for v, level in enumerate(levels):
        if level.access and rng.random() < 0.5:
            waits = rng.choice(
                [
                    {"prefetch_lines": 2, "miss_cycles": 3.0},
                    {"prefetch_lines": 2, "miss_cycles": 3.0, "prefetch_run": 0.1, "prefetch_line": 0.4},
                    {"banks": 2} if v else {"prefetch_lines": 3, "miss_cycles": 1.0},
                ]
            )
            levels[v] = replace(level, access=replace(level.access, **waits))
    return replace(arch, levels=tuple(levels), compute=replace(arch.compute, leak_mw=0.0))


def texts(names: Sequence[str], shape: Sequence[int]) -> list[str]:
    """Every order of dimensions that are whole or cut once."""
    ways = []
    for name, n in zip(names, shape, strict=True):
        ways.append(
            [(name,), *((f"{name}/{f}", f"{name.lower()}{f}") for f in range(2, n))] if n > 1 else [(name,)]
        )
    found = [
        " ".join(order)
        for cut in product(*ways)
        for order in permutations([part for parts in cut for part in parts])
    ]
    return found if len(found) <= MOST_LAYOUTS else Random(len(found)).sample(found, MOST_LAYOUTS)


def enumerated(one: Problem, tiles: str, order: Order = "levels") -> Pair:
    """The optimum over all pairs."""
    e, arch = one.einsum, one.arch
    described = {level.name for level in arch.levels if level.access}
    names = {p.tensor: dim_names(p) for p in e.tensors()}
    best, at, fits = inf, None, 0
    for mapping in mappings(one, tiles, order):
        plain = einsum_cost(one, mapping)
        if isinstance(plain, Infeasible):
            continue
        fits += 1
        layouts, saved = [], 0.0
        for i, node in enumerate(mapping.nodes):
            if not isinstance(node, Store) or node.level not in described:
                continue
            p = next(p for p in e.tensors() if p.tensor == node.tensor)
            if not any((row.level, row.tensor) == (node.level, node.tensor) for row in plain.layout_traffic):
                continue
            least, text = plain.energy_pj, ""
            for other in texts(names[p.tensor], lies(mapping, i, e, p, arch)):
                found = einsum_cost(
                    one, replace(mapping, layouts=(TensorLayout(node.level, node.tensor, other),))
                )
                if not isinstance(found, Infeasible) and found.energy_pj < least:
                    least, text = found.energy_pj, other
            saved += plain.energy_pj - least
            layouts += [TensorLayout(node.level, node.tensor, text)] if text else []
        if plain.energy_pj - saved < best:
            best, at = plain.energy_pj - saved, replace(mapping, layouts=tuple(layouts))
    return Pair(best, at, fits)


def priced_at_random(
    one: Problem, tiles: str, rng: Random, order: Order = "levels"
) -> Iterator[tuple[float, Mapping]]:
    """The figure of every mapping in random layouts."""
    names = {p.tensor: dim_names(p) for p in one.einsum.tensors()}
    for mapping in mappings(one, tiles, order):
        laid = with_layouts(rng, mapping, one.einsum, one.arch, names)
        found = einsum_cost(one, laid)
        if not isinstance(found, Infeasible):
            yield objective_value(one.objective, found.energy_pj, found.latency_cycles), laid
