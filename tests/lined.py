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
from itertools import chain, permutations, product
from math import inf
from random import Random

from dse.mapping.constraints import Constraints, Limit
from dse.mapping.nest import Infeasible, Mapping, Store, TensorLayout
from dse.sim.einsum.evaluate import Problem, einsum_cost, objective_value
from dse.sim.einsum.limits import spatial_trips, temporal_trips
from dse.sim.levels.transfer import dim_names
from hw.arch import Access, Arch, Compute, Fanout, Level
from tests.enumeration import Order, chains, loops_of, mappings, nest, shape, skeletons, slot_of
from tests.problems import OBJECTIVES, RANKS, WINDOW_RANKS, einsum_of, random_problem
from tests.streams import lies, with_layouts

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


def stalling(rng: Random, _group: str, _levels: int) -> Arch:
    """Single buffers below a memory that moves lines, with slow ports: some tiles come at the pace of the
    memory, others (lanes share them) at that of a buffer, so exchanges differ in their busiest port.
    """
    border = rng.choice([1, 1, 1, 1, 2, 9])
    depth = 2 if border == 1 else 3
    levels = []
    for v in range(depth):
        is_lined, twice = not v or (v < depth - 1 and rng.random() < 0.6), v > 0 and rng.random() < 0.1
        access = Access(rng.choice([8, 8, 8, 8, 32])) if is_lined else None
        bandwidth = rng.choice([1.0, 1.0, 1.5, 2.0] if not v else [0.25, 0.4, 0.5, 0.7, 1.0])
        ports, skips = rng.choice(["shared", "shared", "separate"]), rng.random() < 0.6
        room, may_pass = 8 * rng.choice([4, 6, 10, 16]) if v else None, v > 0 and rng.random() < 0.3
        levels.append(
            Level(f"L{v}", room, 8, 1.0, 1.0, bandwidth, ports, twice, may_pass, skips, access=access)
        )
    lanes = (("X", rng.choice([2, 3, 4])),)
    arrays = (Fanout("A", border, lanes, (True,), (rng.random() < 0.7,)),) if border < 9 else ()
    compute = Compute(1.0, 0.5, 64.0, leak_mw=rng.choice([0.0, 2.0]))
    return Arch("stalling", tuple(levels), arrays, compute, 1.0, 8, overlap="buffered")


def stalled(seed: int) -> tuple[Problem, str]:
    """A problem too large to list, on such a machine with room for all, and its tiles."""
    rng = Random(seed)
    arch = stalling(rng, "", 0)
    arch = replace(
        arch,
        levels=tuple(replace(level, capacity_bits=level.capacity_bits and 1 << 20) for level in arch.levels),
    )
    kind = rng.choice(["gemm", "gemm", "layer", "bmm", "vector", "conv1d", "depthwise", "transposed"])
    sizes = {
        rank: rng.choice((2, 3, 4, 6, 8, 12) if rank not in WINDOW_RANKS else (2, 3)) for rank in RANKS[kind]
    }
    e = einsum_of(kind, sizes, rng)
    e = replace(e, output=replace(e.output, bits=rng.choice([None, None, 16])))
    return Problem(arch, e, rng.choice(OBJECTIVES)), rng.choice(["perfect", "imperfect_spatial"])


def some_mappings(one: Problem, tiles: str, rng: Random, count: int) -> Iterator[Mapping]:
    """Random mappings of the space; the innermost level has as many tensors as it may."""
    e, arch = one.einsum, one.arch
    forms = list(skeletons(e, arch, "tensors"))
    held = [sum(v == len(arch.levels) - 1 for v, _ in form) for form in forms]
    forms = [form for form, n in zip(forms, held, strict=True) if n == max(held)]
    for form in rng.choices(forms, k=count):
        own = shape(form, arch)
        yield nest(
            e,
            arch,
            form,
            own,
            [
                rng.choice(chains(n, loops_of(e, arch, own.kinds, rank), tiles, slot_of(e, arch, rank)))
                for rank, n in e.extents
                if n > 1
            ],
        )


def alike(one: Problem, mapping: Mapping) -> Constraints:
    """Limits that leave the mapping and those with the same trips of all loops by level and lane, and the
    same tensors at every level.
    """
    e, arch, limits = one.einsum, one.arch, list[Limit]()
    for level, p in product(arch.levels[1:], e.tensors()):
        held = "keep" if Store(level.name, p.tensor) in mapping.nodes else "bypass"
        limits.append(Limit(held, level.name, p.tensor, 0, 1, ""))  # type: ignore[arg-type]
    for rank in [rank for rank, n in e.extents if n > 1]:
        for level in arch.levels:
            n = temporal_trips(mapping, e, arch, level.name, rank)
            limits.append(Limit("temporal", level.name, rank, n, n, ""))
        for name, _ in chain(*(f.dims for f in arch.fanouts)):
            n = spatial_trips(mapping, e, name, rank)
            limits.append(Limit("spatial", name, rank, n, n, ""))
    return Constraints(limits=tuple(limits))


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
