"""Every schedule of a small workload with one shared loop per segment and tensors kept whole, by evaluating
each nest: what fused tiles are proven against.

Shares the evaluator with dse/solve, and the list of all mappings with the proofs of the mapper; which loops
may be shared is what `faults` lets pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, combinations, permutations, product
from math import ceil, inf
from random import Random

from dse.mapping.constraints import FREE, minimal_mapping, ruled
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, TensorLayout
from dse.mapping.schedule import Branch, Retained, Schedule, Segment
from dse.mapping.searched import Space, excluding_features
from dse.sim.einsum import boundary
from dse.sim.einsum.cost import node_bits
from dse.sim.einsum.evaluate import Problem, Solution, einsum_cost, objective_value
from dse.sim.fronts import Objective
from dse.sim.levels.network import Uncounted
from dse.sim.levels.transfer import dim_names
from dse.sim.schedule import placed
from dse.sim.schedule.faults import faults
from dse.solve.options import SolverOptions
from dse.solve.schedules.fused import _best_schedules, fused, graph
from dse.solve.schedules.nests import Nests
from dse.solve.solve import _layouts, solve
from hw.arch import ROLES, Access, Arch, Compute, Fanout, Level, Rule
from tests import rates, rules_kept
from tests.enumeration import mappings, size
from tests.nests import ported
from workloads.einsum import Einsum, csr, einsum
from workloads.graph import Workload

MOST = 700  # mappings of an einsum
FEW = 80  # where each is priced in several layouts
CLOSE = 1e-9
FEW_ROWS = (2, 3, 4)
ELEVEN = (11, 11, 11)  # rows without divisors: shared loops may leave a remainder


def subsets(items: list[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


def small_workload(rng: Random, many: int, rows: Sequence[int] = FEW_ROWS) -> Workload:
    """Chains, residual edges, branches, shared inputs; products, sums, windows, functions. rows: of X"""
    shapes, weights, found = {"X": (rng.choice(rows), rng.choice([2, 4]))}, set(), []
    for i in range(many):
        a = f"T{i - 1}" if i and rng.random() < 0.7 else rng.choice([t for t in shapes if t not in weights])
        rows, columns = shapes[a]
        m, n, k = (f"{rank}{i}" if rng.random() < 0.5 else rank for rank in "mnk")
        alike = [t for t in shapes if shapes[t] == (rows, columns) and t != a]
        kind = rng.choice(["gemm", "gemm", "add", "map", "window", "left", "slice", "square"])
        if kind == "add" and alike:
            found.append(
                einsum(
                    f"T{i}[{m},{n}] = {a}[{m},{n}] + {rng.choice(alike)}[{m},{n}]",
                    {m: rows, n: columns},
                    f"e{i}",
                )
            )
            shapes[f"T{i}"] = (rows, columns)
        elif kind == "window" and columns > 2:
            pad = rng.randint(0, 1)
            wide = columns + 2 * pad - 1
            found.append(
                einsum(
                    f"T{i}[{m},{n}] += {a}[{m},{n}+{k}{f'-{pad}' if pad else ''}] * W{i}[{k}]",
                    {m: rows, n: wide, k: 2},
                    f"e{i}",
                    sizes={a: (rows, columns)},
                )
            )
            shapes[f"T{i}"] = (rows, wide)
            weights.add(f"W{i}")
        elif kind == "slice":  # a constant index
            found.append(
                einsum(
                    f"T{i}[0,{n}] = relu({a}[{rng.randrange(rows)},{n}])",
                    {n: columns},
                    f"e{i}",
                    sizes={a: (rows, columns)},
                )
            )
            shapes[f"T{i}"] = (1, columns)
        elif kind == "square":  # a tensor read twice
            found.append(
                einsum(
                    f"T{i}[{m},{n}] += {a}[{m},{k}] * {a}_again[{n},{k}]",
                    {m: rows, n: rows, k: columns},
                    f"e{i}",
                )
            )
            shapes[f"T{i}"] = (rows, rows)
        elif kind == "left":
            wide = rng.choice([2, 3])
            found.append(
                einsum(
                    f"T{i}[{n},{m}] += W{i}[{n},{k}] * {a}[{k},{m}]", {n: wide, m: columns, k: rows}, f"e{i}"
                )
            )
            shapes[f"T{i}"] = (wide, columns)
            weights.add(f"W{i}")
        elif kind == "gemm":
            wide = rng.choice([2, 3])
            found.append(
                einsum(
                    f"T{i}[{m},{n}] += {a}[{m},{k}] * W{i}[{k},{n}]", {m: rows, n: wide, k: columns}, f"e{i}"
                )
            )
            shapes[f"T{i}"] = (rows, wide)
            weights.add(f"W{i}")
        else:
            found.append(einsum(f"T{i}[{m},{n}] = relu({a}[{m},{n}])", {m: rows, n: columns}, f"e{i}"))
            shapes[f"T{i}"] = (rows, columns)
    return Workload("random", tuple(found), frozenset(weights))


def small_machine(rng: Random, overlap: str) -> Arch:
    """Room for some of the tensors. Lanes below the buffer, or none."""
    leak = rng.choice([0.0, 0.0, 2.0])
    levels = (
        Level(
            "DRAM",
            None,
            8,
            rng.choice([20.0, 200.0]),
            200.0,
            rng.choice([1.0, 4.0]),
            bypass=False,
            leak_mw=leak,
        ),
        Level(
            "GLB",
            8 * rng.choice([4, 8, 12, 16, 24, 40]),
            8,
            2.0,
            3.0,
            rng.choice([1.0, 8.0]),
            bypass=rng.random() < 0.8,
            double_buffer=overlap == "buffered" and rng.random() < 0.5,
        ),
    )
    flags = (rng.random() < 0.7, rng.random() < 0.7)
    fanouts = (Fanout("array", 2, (("X", 2),), flags[:1], flags[1:]),) if rng.random() < 0.5 else ()
    return Arch("small", levels, fanouts, Compute(1.0, 0.5, merge_pj=0.25), 1.0, 8, overlap=overlap)  # type: ignore[arg-type]


def enumerable(draw: Callable[[], tuple[Arch, Workload]], most: int = MOST) -> tuple[Arch, Workload]:
    """The first draw of which no einsum has more than so many mappings."""
    while True:
        arch, workload = draw()
        if all(size(e, arch, "perfect", limit=most) <= most for e in workload.einsums):
            return arch, workload


def random_case(
    seed: int, overlap: str = "free", most: int = MOST, rows: Sequence[int] = FEW_ROWS
) -> tuple[Arch, Workload]:
    rng = Random(seed)
    return enumerable(
        lambda: (small_machine(rng, overlap), small_workload(rng, rng.randint(2, 4), rows)), most
    )


def rated_case(seed: int, overlap: str = "free", most: int = MOST) -> tuple[Arch, Workload]:
    """The same with slow lanes and leakage."""
    arch, workload = random_case(seed, overlap, most)
    return rates.drawn(arch, Random(f"rates {seed}")), workload


def networked_case(seed: int, overlap: str = "free") -> tuple[Arch, Workload]:
    """The same with an array of which links and endpoints cost."""
    rng = Random(f"network {seed}")

    def drawn() -> tuple[Arch, Workload]:
        arch, workload = small_machine(rng, overlap), small_workload(rng, rng.randint(2, 3))
        dims = rng.choice([(("Y", 1), ("X", 2)), (("Y", 1), ("X", 4)), (("Y", 2), ("X", 2))])
        flags = [tuple(rng.random() < 0.7 for _ in dims) for _ in range(2)]
        array = Fanout("array", 2, dims, *flags, hop_pj=rng.choice([0.0, 0.5, 2.0]), endpoint_pj=0.25)
        return replace(arch, fanouts=(array,)), workload

    arch, workload = enumerable(drawn)
    return rates.drawn(arch, rng) if seed % 2 else arch, workload


def ported_case(seed: int, overlap: str = "free") -> tuple[Arch, Workload]:
    """The same with levels that say which of their ports serves what, at rates of their own."""
    arch, workload = rated_case(seed, overlap, FEW * 4)
    return ported(arch, workload.einsums[0]), workload


def widened_case(seed: int, overlap: str = "free") -> tuple[Arch, Workload]:
    """The same with a level below that narrows or widens elements, of some tensors or of sums alone."""
    rng = Random(f"widths {seed}")

    def drawn() -> tuple[Arch, Workload]:
        arch, workload = small_machine(rng, overlap), small_workload(rng, rng.randint(2, 3))
        roles = rng.choice([("output",), ("output",), ("input", "output"), ROLES])
        inner = Level(
            "ACC",
            8 * rng.choice([4, 8, 12, 32]),
            rng.choice([8, 16]),
            rng.choice([0.5, 1.0, 2.5]),
            rng.choice([0.5, 1.5]),
            rng.choice([1.0, 8.0]),
            bits=tuple((role, rng.choice([4, 16, 24, 32])) for role in roles),
            may_keep=roles,
        )
        fanouts = tuple(replace(f, outside=rng.choice([2, 3])) for f in arch.fanouts)
        return replace(arch, levels=(*arch.levels, inner), fanouts=fanouts), workload

    arch, workload = enumerable(drawn)
    return rates.drawn(arch, rng) if seed % 2 else arch, workload


def handed_on(own: tuple[Einsum, ...]) -> frozenset[str]:
    """Tensors that one einsum makes and another reads; T_again is a further access of T."""
    return frozenset(
        e.output.tensor
        for e in own
        if any(e.output.tensor in {own_name(p.tensor) for p in o.inputs} for o in own)
    )


def own_name(tensor: str) -> str:
    return tensor.removesuffix("_again")


def one_loop(workload: Workload) -> Space:
    """The space of one shared loop, tensors held whole, and tensors retained, at GLB."""
    made = tuple(e.output.tensor for e in workload.einsums)
    return Space((), "given", fused=8, shared_loops=1, held=6, levels=("GLB",), retained=made)


def _tensors(e: Einsum) -> list[str]:
    return [p.tensor for p in e.tensors()]


def _owners(e: Einsum) -> set[str]:
    return {own_name(t) for t in _tensors(e)}


SharedLoops = tuple[tuple[tuple[str, ...], int], ...]  # (rank of each einsum, tile), outermost first


@dataclass
class Everything:
    """The least figure of all schedules that `space` covers: einsums alone, and segments below one loop over
    ranks of all results, with any tensors that it does not cut held whole; where the space has depths, also
    below up to three loops of any ranks, every tensor at any depth among them. Which loops may be shared is
    what `faults` lets pass. rules: that nests keep (tests/rules_kept.py). nests: (cost, own bits at GLB) of
    an einsum's nests where it stands.
    """

    arch: Arch
    workload: Workload
    objective: Objective
    space: Space
    rules: tuple[Rule, ...] = ()
    nests: dict[object, list[tuple[float, int]]] = field(default_factory=dict)
    legal: dict[object, bool] = field(default_factory=dict)

    def best(self) -> float:
        read = {own_name(p.tensor) for e in self.workload.einsums for p in e.inputs}
        handed = [e.output.tensor for e in self.workload.einsums if e.output.tensor in read]
        return min((self.rest(0, frozenset(kept)) for kept in subsets(handed)), default=inf)

    def rest(self, first: int, kept: frozenset[str]) -> float:
        if first == len(self.workload.einsums):
            return 0.0
        return min(
            self.segment(first, last, kept) + self.rest(last, kept)
            for last in range(first + 1, len(self.workload.einsums) + 1)
        )

    def segment(self, first: int, last: int, kept: frozenset[str]) -> float:
        own = self.workload.einsums[first:last]
        handed = handed_on(own)
        if kept & handed:
            return inf
        if len(own) == 1:
            return self.below(own, 0, (), {}, kept, self.free(first, last, kept))
        best = inf
        for loops, depths in self.plans(own, handed, kept):
            held = self.rooms(own, loops, depths | dict.fromkeys(handed, len(loops)))
            room = self.free(first, last, kept, loops)
            if max(held) > room:
                continue
            costs = (self.below(own, j, loops, depths, kept, room - n) for j, n in enumerate(held))
            if (cost := sum(costs)) < best and self.covered(first, last, loops, depths, kept):
                best = cost
        return best

    def plans(
        self, own: tuple[Einsum, ...], handed: frozenset[str], kept: frozenset[str]
    ) -> Iterator[tuple[SharedLoops, dict[str, int]]]:
        """Shared loops, and the depths of tensors that stand below them; others pass by."""
        names = [t for e in own for t in _tensors(e)]
        again = any(own_name(t) in handed and own_name(t) != t for t in names)
        if handed and not again:
            for ranks, tile in self.axes(own):
                cut = {
                    p.tensor for e, r in zip(own, ranks, strict=True) for p in e.tensors() if r in p.ranks()
                }
                once = {t for t in names if names.count(t) == 1 and own_name(t) not in kept}
                for held in subsets(sorted(once - cut - handed)):
                    yield ((ranks, tile),), dict.fromkeys(held, 0)
        if self.space.depths and not again:
            others = sorted({*names} - handed - kept)
            for loops in self.loops(own, handed):
                for at in product(range(-1, len(loops) + 1), repeat=len(others)):
                    yield loops, {t: d for t, d in zip(others, at, strict=True) if d >= 0}

    def axes(self, own: tuple[Einsum, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
        """Lists loops over a rank of every result, in tiles that divide."""
        for ranks in product(*(sorted(e.output.full_ranks()) for e in own)):
            sizes = {e.sizes()[rank] for e, rank in zip(own, ranks, strict=True)}
            if len(sizes) == 1:
                (n,) = sizes
                yield from ((ranks, tile) for tile in range(1, n) if n % tile == 0)

    def free(self, first: int, last: int, kept: frozenset[str], loops: SharedLoops = ()) -> int:
        """Bits that kept tensors leave while einsums first to last run."""
        users = {t: [i for i, e in enumerate(self.workload.einsums) if t in _owners(e)] for t in kept}
        there = sorted(t for t, at in users.items() if at[0] < last and at[-1] >= first)
        elems = {e.output.tensor: e.output.stored_elems() for e in self.workload.einsums}
        taken, left = sum(elems[t] for t in there), [t for t in there if users[t][0] < first]
        for new in (t for t in there if users[t][0] >= first):
            at = users[new][0] - first
            for old in left:
                if users[old][-1] <= users[new][0] and self.overwrites(first, last, old, at, loops):
                    taken -= min(elems[old], elems[new])
                    left.remove(old)
                    break
        return self.arch.levels[1].capacity_bits - 8 * taken

    def overwrites(self, first: int, last: int, old: str, at: int, loops: SharedLoops) -> bool:
        """True if the einsum at this place of a segment makes each element when no one needs that of `old` at
        the same position any more, of the same size.
        """
        own = self.workload.einsums[first:last]
        maker, made = own[at], own[at].output
        reads = [(j, p) for j, e in enumerate(own) for p in e.inputs if own_name(p.tensor) == old]
        for j, p in reads:
            same = maker.kind != "mac" and p.dims == made.dims and {*maker.ranks()} == {*made.ranks()}
            if (j == at and not same) or [d.size for d in p.dims] != [d.size for d in made.dims]:
                return False
            for ranks, _ in loops:
                cut, into = (
                    [k for k, d in enumerate(q.dims) if d.terms == ((ranks[i], 1),) and not d.offset]
                    for q, i in ((p, j), (made, at))
                )
                if not cut or cut != into:
                    return False
        return True

    def loops(self, own: tuple[Einsum, ...], handed: frozenset[str]) -> Iterator[SharedLoops]:
        """Lists of up to three loops over ranks that cut what is handed on alike. Tiles of several divide."""

        def places(e: Einsum, rank: str) -> dict[str, tuple[int, ...]]:
            dims = {p.tensor: [i for i, d in enumerate(p.dims) if d.ranks() == (rank,)] for p in e.tensors()}
            return {t: tuple(at) for t, at in dims.items() if t in handed}

        def fits(ranks: tuple[str, ...]) -> bool:
            cuts = {one for e, rank in zip(own, ranks, strict=True) for one in places(e, rank).items()}
            sizes = {e.sizes()[rank] for e, rank in zip(own, ranks, strict=True)}
            return len(sizes) == 1 and sizes != {1} and len(cuts) == len(handed) and all(at for _, at in cuts)

        found = [ranks for ranks in product(*(e.ranks() for e in own)) if fits(ranks)]
        for many in range(1, 4):
            for order in permutations(found, many):
                if all(len(set(mine)) == many for mine in zip(*order, strict=True)):
                    sizes = [own[0].sizes()[ranks[0]] for ranks in order]
                    for tiles in product(
                        *([t for t in range(1, n) if many == 1 or n % t == 0] for n in sizes)
                    ):
                        yield tuple(zip(order, tiles, strict=True))

    def rooms(self, own: tuple[Einsum, ...], loops: SharedLoops, depths: dict[str, int]) -> list[int]:
        """Bits of shared nodes that are alive while each einsum runs."""
        found = [0] * len(own)
        for t, depth in depths.items():
            users = [j for j, e in enumerate(own) if t in _tensors(e)]
            e, p = next((e, p) for e in own for p in e.tensors() if p.tensor == t)
            cut = e.sizes() | {ranks[users[0]]: tile for ranks, tile in loops[:depth]}
            elems = rows = 1
            for d in p.dims:
                elems, rows = elems * (1 + sum(c * (cut[r] - 1) for r, c in d.terms)), elems
            elems = elems if p.format == "dense" else ceil(round(2 * p.density * elems, 6)) + rows
            twice = 2 if self.arch.levels[1].double_buffer and depth else 1
            alive = range(users[0], users[-1] + 1) if depth == len(loops) else range(len(own))
            for j in alive:
                found[j] += 8 * elems * twice
        return found

    def all(self, e: Einsum, tiles: dict[str, int], near: frozenset[str]) -> Iterator[Mapping]:
        """Nests below a fork; of tensors that are near, without their node at GLB. tiles: by rank, of shared
        loops.
        """
        trip = replace(e, extents=tuple((r, tiles.get(r, n)) for r, n in e.extents))
        levels = (replace(self.arch.levels[0], bypass=True), *self.arch.levels[1:])
        seen = set()
        for found in mappings(
            Problem(replace(self.arch, levels=levels), trip, self.objective), "perfect", "tensors"
        ):
            first: dict[str, str] = {}
            for node in found.nodes:
                if isinstance(node, Store):
                    first.setdefault(node.tensor, node.level)
            if all(level == ("GLB" if t in near else "DRAM") for t, level in first.items()):
                nest = replace(
                    found,
                    nodes=tuple(
                        n
                        for n in found.nodes
                        if not (isinstance(n, Store) and n.level == "GLB" and n.tensor in near)
                    ),
                )
                if str(nest) not in seen:
                    seen.add(str(nest))
                    yield nest

    def text(
        self, own: tuple[Einsum, ...], loops: SharedLoops, depths: dict[str, int], nests: list[Mapping]
    ) -> Segment:
        makes = [e.output.tensor for e in own if e.output.tensor in handed_on(own)]
        outside = {p.tensor for o in self.workload.einsums if o not in own for p in o.inputs}
        nodes: list[Loop | Store] = [Store("DRAM", t) for t in makes if t in outside]
        nodes += [Store("DRAM", t) for t in depths]
        for depth in range(len(loops) + 1):
            nodes += [Store("GLB", t) for t, d in depths.items() if d == depth]
            nodes += [Loop(ranks[0], tile) for ranks, tile in loops[depth : depth + 1]]
        nodes += [Store("GLB", t) for t in makes]
        branches = [
            Branch(
                e.name,
                nest,
                tuple(sorted((ranks[0], ranks[j]) for ranks, _ in loops if ranks[j] != ranks[0])),
            )
            for j, (e, nest) in enumerate(zip(own, nests, strict=True))
        ]
        return Segment(tuple(branches), tuple(nodes))

    def below(
        self,
        own: tuple[Einsum, ...],
        j: int,
        loops: SharedLoops,
        depths: dict[str, int],
        kept: frozenset[str],
        room: int,
    ) -> float:
        """The least of an einsum's nests that fit."""
        e, before = own[j], {t for o in own[:j] for t in _tensors(o)}
        mine = tuple((t, d, t in before) for t, d in depths.items() if t in _tensors(e))
        cuts = tuple((ranks[j], tile) for ranks, tile in loops)
        stays = tuple(t for t in _tensors(e) if own_name(t) in kept)
        key = (tuple(o.name for o in own), j, cuts, mine, stays)
        if key not in self.nests:
            self.nests[key] = list(self.prices(own, j, loops, depths, stays))
        return min((cost for cost, bits in self.nests[key] if bits <= room), default=inf)

    def prices(
        self,
        own: tuple[Einsum, ...],
        j: int,
        loops: SharedLoops,
        depths: dict[str, int],
        stays: tuple[str, ...],
    ) -> Iterator[tuple[float, int]]:
        e, (outer, buffer, *inner) = own[j], self.arch.levels
        wide = replace(self.arch, levels=(outer, replace(buffer, capacity_bits=None), *inner))
        near = {*handed_on(own), *depths, *stays} & {*_tensors(e)}
        fill = [minimal_mapping(o, self.arch) for o in own]
        kept = tuple(Store(level, t) for t in stays for level in ("DRAM", "GLB"))
        shared = (
            dict.fromkeys(stays, 0)
            | {t: depth for t, depth in depths.items() if t in near}
            | {t: len(loops) for t in handed_on(own) if t in near}
        )
        outside = {p.tensor for o in self.workload.einsums if o not in own for p in o.inputs}
        outer = {t for t in shared if t in depths or t in outside} - {*stays}
        own_loops = [(ranks[j], tile) for ranks, tile in loops]
        for nest in self.all(e, dict(own_loops), frozenset(near)):
            if not rules_kept.kept(self.rules, e, self.arch, own_loops, shared, outer, nest.nodes):
                continue
            nests = [*fill[:j], replace(nest, nodes=(*kept, *nest.nodes)), *fill[j + 1 :]]
            segment = self.text(own, loops, depths, nests)
            one = placed.placed_segments(wide, Workload("", own), Schedule((segment,)))[0][j]
            around = replace(one.boundary, retained=tuple((t, "GLB", Fraction(1)) for t in stays))
            try:
                cost = einsum_cost(Problem(wide, e, self.objective, around), one.nest)
            except Uncounted:  # no answer
                continue
            if isinstance(cost, Infeasible):  # too many PEs
                continue
            rows = boundary.node_footprints(around, boundary.whole_nest(around, one.nest), e, wide)
            mine = [row for row in rows if row.level == "GLB" and row.tensor not in near]
            bits = sum(node_bits(row, wide.levels[1], e, wide) for row in mine)
            yield objective_value(self.objective, cost.energy_pj, cost.latency_cycles), bits

    def covered(
        self, first: int, last: int, loops: SharedLoops, depths: dict[str, int], kept: frozenset[str]
    ) -> bool:
        own = self.workload.einsums[first:last]
        key = (first, last, loops, tuple(depths.items()), kept)
        if key not in self.legal:
            alone = [Segment((Branch(e.name, minimal_mapping(e, self.arch)),)) for e in self.workload.einsums]
            nests = []
            for j, e in enumerate(own):
                stays = [t for t in _tensors(e) if own_name(t) in kept]
                near = frozenset({*handed_on(own), *depths, *stays} & {*_tensors(e)})
                nest = next(self.all(e, {ranks[j]: t for ranks, t in loops}, near))
                held = (Store(level, t) for t in stays for level in ("DRAM", "GLB"))
                nests.append(replace(nest, nodes=(*held, *nest.nodes)))
            segment = self.text(own, loops, depths, nests)
            here = {own_name(t) for e in own for t in _tensors(e)} & kept
            retained = tuple(Retained("GLB", t, Fraction(1)) for t in sorted(here))
            whole = Schedule((*alone[:first], segment, *alone[last:]), retained)
            self.legal[key] = not faults(self.arch, self.workload, whole) and not any(
                excluding_features(self.space, whole, self.workload, self.arch)
            )
        return self.legal[key]


@dataclass
class InLayouts(Everything):
    """The same on a machine that feels layouts: what einsums share, and what one alone has, row-major or
    column-major at the outermost level, copies for free. So it may be below what can be had, and above what
    other layouts give. In segments all is row-major.
    """

    known: dict[object, float] = field(default_factory=dict)
    turned: frozenset[tuple[str, str]] = frozenset()  # (tensor, einsum) that see a shared tensor column-major

    def best(self) -> float:
        made = {e.output.tensor for e in self.workload.einsums}
        self.both = made & {own_name(p.tensor) for e in self.workload.einsums for p in e.inputs}
        users = [
            (p.tensor, e.name)
            for e in self.workload.einsums
            for p in e.tensors()
            if own_name(p.tensor) in self.both and len(p.dims) == 2
        ]
        found = inf
        for kept in subsets(sorted(self.both)):
            for turned in subsets([one for one in users if own_name(one[0]) not in kept]):  # type: ignore[arg-type]
                self.turned = frozenset(turned)  # type: ignore[arg-type]
                found = min(found, self.rest(0, frozenset(kept)))
        return found

    def segment(self, first: int, last: int, kept: frozenset[str]) -> float:
        names = {e.name for e in self.workload.einsums[first:last]}
        key = first, last, kept, frozenset(one for one in self.turned if one[1] in names)
        if key not in self.known:
            self.known[key] = inf if key[3] and len(names) > 1 else super().segment(first, last, kept)
        return self.known[key]

    def below(
        self,
        own: tuple[Einsum, ...],
        j: int,
        loops: SharedLoops,
        depths: dict[str, int],
        kept: frozenset[str],
        room: int,
    ) -> float:
        mine = frozenset(one for one in self.turned if one[1] in {e.name for e in own})
        if loops:
            return super().below(own, j, loops, depths, kept, room)
        e = own[j]
        stays = tuple(t for t in _tensors(e) if own_name(t) in kept)
        if (e.name, stays, mine) not in self.nests:
            alone = [
                p.tensor for p in e.tensors() if own_name(p.tensor) not in self.both and len(p.dims) == 2
            ]
            self.nests[e.name, stays, mine] = [
                row
                for free in subsets(alone)
                for row in self.laid(e, {t for t, _ in mine} | set(free), stays)
            ]
        return min((cost for cost, bits in self.nests[e.name, stays, mine] if bits <= room), default=inf)

    def laid(self, e: Einsum, columns: set[str], stays: tuple[str, ...]) -> Iterator[tuple[float, int]]:
        texts = tuple(
            TensorLayout("DRAM", p.tensor, " ".join(reversed(dim_names(p))))
            for p in e.tensors()
            if p.tensor in columns
        )
        nests = self.all
        try:
            self.all = lambda *given: (replace(nest, layouts=texts) for nest in nests(*given))  # type: ignore[method-assign]
            yield from self.prices((e,), 0, (), {}, stays)
        finally:
            self.all = nests  # type: ignore[method-assign]


def laid_case(seed: int, overlap: str, rated: bool = False) -> tuple[Arch, Workload]:
    """A random case with lines, and mostly rows; rated: with slow lanes and leakage."""
    arch, workload = (rated_case if rated else random_case)(seed, overlap, FEW)
    rng = Random(seed)
    rows = (rng.choice([64, 256]), 2, 0, rng.choice([30.0, 600.0]), 0.0) if rng.random() < 0.7 else ()
    outer = replace(arch.levels[0], access=Access(rng.choice([16, 32, 64]), *rows))
    return replace(arch, levels=(outer, *arch.levels[1:])), workload


def wrong_in_layouts(seed: int, overlap: str = "free", rated: bool = False) -> tuple[list[str], list[float]]:
    """What the joint choice of reuse and layouts says otherwise, and its figures over those of the list: a
    floor above a schedule of the list; more than without layouts, or without reuse.
    """
    arch, workload = laid_case(seed, overlap, rated)
    lines, ratios = [], []
    objectives: tuple[Objective, ...] = ("energy", "latency")
    for objective in objectives:
        options, best = (
            SolverOptions(objective, factors="perfect", gap=0.0),
            InLayouts(arch, workload, objective, one_loop(workload)).best(),
        )
        chosen = _layouts(arch, workload, replace(options, layout="alt"))
        if isinstance(chosen, Infeasible):
            lines += [f"seed {seed} {objective}: {chosen}, enumerated {best}"] if best < inf else []
            continue
        found = _best_schedules(
            graph(arch, workload, objective, Nests(arch, objective, "perfect", lambda _: FREE, 0.0), chosen),
            objective,
        )
        assert isinstance(found, tuple)
        value = min(objective_value(objective, one.energy_pj, one.latency_cycles) for one in found[0])
        for reuse, layout in (("unfused", "alt"), ("fused", "row_major")):
            other = solve(arch, workload, replace(options, schedule=reuse, layout=layout))  # type: ignore[arg-type]
            if isinstance(other, list) and (
                least := objective_value(objective, other[0].energy_pj, other[0].latency_cycles)
            ) < value * (1 - CLOSE):
                lines.append(f"seed {seed} {objective}: {value}, reuse {reuse} in layouts {layout} {least}")
        if found[1] > best * (1 + CLOSE):
            lines.append(f"seed {seed} {objective}: none is below {found[1]}, enumerated {best}")
        ratios.append(value / best)
    return lines, ratios


def sparse_case(seed: int, widths: tuple[int, int] | None = None) -> tuple[Arch, Workload]:
    """A compressed matrix times a dense one, column by column if need be, and a function of the product; the
    matrix is held, or comes anew for each column. widths: of an index and of a pointer, drawn where none are
    given.
    """
    rng = Random(seed)
    arch, sizes = (
        small_machine(rng, "free"),
        {"m": rng.choice([2, 3]), "k": rng.choice([2, 3, 4]), "n": rng.choice([2, 4])},
    )
    density = rng.choice([0.1, 0.25, 0.5])
    product_of = einsum(
        "T0[m,n] += A[m,k] * X[k,n]",
        sizes,
        "e0",
        **csr("A", density, *(widths or (rng.choice([0, 8, 16]), rng.choice([0, 8])))),
    )
    return arch, Workload(
        "sparse",
        (product_of, einsum("T1[m,n] = relu(T0[m,n])", {"m": sizes["m"], "n": sizes["n"]}, "e1")),
        frozenset("A"),
    )


def wrong(seed: int, overlap: str = "free", rated: bool = False) -> list[str]:
    """What the engine says otherwise of one random case; rated: with slow lanes and leakage."""
    return unlike(seed, *(rated_case if rated else random_case)(seed, overlap))


def ruled_case(seed: int, overlap: str = "free") -> tuple[Arch, Workload, tuple[Rule, ...]]:
    """A random case of two or three einsums under rules; every third of three levels, of two widths."""
    rng = Random(f"rules {seed}")
    if seed % 3 == 2:
        arch, workload = widened_case(seed, overlap)
    else:
        arch, workload = enumerable(
            lambda: (small_machine(rng, overlap), small_workload(rng, rng.randint(2, 3)))
        )
    return arch, workload, rules_kept.drawn_rules(rng, arch, workload)


def unlike(seed: int, arch: Arch, workload: Workload, rules: tuple[Rule, ...] = ()) -> list[str]:
    """What the engine says otherwise than the list of all schedules: its figure, its gap. With several shared
    loops for energy, and with one. rules: that both keep.
    """
    lines = []
    searches: tuple[tuple[Objective, bool], ...] = (("energy", True), ("energy", False), ("latency", False))
    for objective, several in searches:
        found = fused(
            arch, workload, objective, "perfect", lambda e: ruled(FREE, rules, e, arch), several_loops=several
        )
        space = found.space if isinstance(found, Solution) and found.space else one_loop(workload)
        free = tuple(replace(one, rules=()) for one in space.mappings)
        best = Everything(arch, workload, objective, replace(space, mappings=free), rules).best()
        if isinstance(found, Infeasible):
            lines += [f"seed {seed} {objective}: {found}, enumerated {best}"] if best < inf else []
            continue
        value = objective_value(objective, found.energy_pj, found.latency_cycles)
        if value < best * (1 - CLOSE) or value > (1 + found.optimality_gap) * best * (1 + CLOSE):
            lines.append(
                f"seed {seed} {objective}: {value}, {found.certificate.partition(' schedules ')[0]}, "
                f"enumerated {best}"
            )
    return lines
