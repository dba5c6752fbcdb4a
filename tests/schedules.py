"""Random workloads of two to four einsums, and schedules of them: fused, kept, pinned, pipelined, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Region, Retained, Schedule, Segment
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate
from hw.arch import ROLES, Arch, Compute, Fanout, Level
from tests.nests import random_arch
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload


def random_workload(rng: Random, count: int, pipelined: bool) -> Workload:
    """Chains with side inputs and skipped edges: products, sums, windows, row sums; each einsum has names of
    its own for ranks, or shares them.
    """
    shapes = {"X": (size(rng, pipelined), size(rng, pipelined))}
    einsums: list[Einsum] = []
    weights = set()
    for i in range(count):
        out, a = f"T{i}", f"T{i - 1}" if i and rng.random() < 0.7 else rng.choice(list(shapes))
        if a in weights:
            a = "X"
        m, n, k, r = (f"{rank}{i}" if rng.random() < 0.5 else rank for rank in "mnkr")
        rows, columns = shapes[a]
        alike = [t for t, shape in shapes.items() if shape == (rows, columns) and t != a]
        crossed = [t for t, shape in shapes.items() if shape[1] == columns and t != a]
        kind = rng.choice(
            ["gemm", "gemm", "gemm", "add", "window", "cross", "map", "slice", "square", "total"]
        )
        if kind == "add" and alike:
            b = rng.choice(alike)
            einsums.append(
                einsum(f"{out}[{m},{n}] = {a}[{m},{n}] + {b}[{m},{n}]", {m: rows, n: columns}, f"e{i}")
            )
            shapes[out] = (rows, columns)
        elif kind == "cross" and crossed:
            b = rng.choice(crossed)
            einsums.append(
                einsum(
                    f"{out}[{m},{n}] += {a}[{m},{k}] * {b}[{n},{k}]",
                    {m: rows, n: shapes[b][0], k: columns},
                    f"e{i}",
                )
            )
            shapes[out] = (rows, shapes[b][0])
        elif kind == "window":
            taps, pad = rng.randint(1, min(3, columns)), rng.randint(0, 1)
            wide = max(columns + 2 * pad - taps + 1, 1)
            index = f"{n}+{r}-{pad}" if pad else f"{n}+{r}"
            einsums.append(
                einsum(
                    f"{out}[{m},{n}] += {a}[{m},{index}] * W{i}[{m},{r}]",
                    {m: rows, n: wide, r: taps},
                    f"e{i}",
                    sizes={a: (rows, columns)},
                )
            )
            shapes[out], weights = (rows, wide), weights | {f"W{i}"}
        elif kind == "map":
            einsums.append(einsum(f"{out}[{m},{n}] = relu({a}[{m},{n}])", {m: rows, n: columns}, f"e{i}"))
            shapes[out] = (rows, columns)
        elif kind == "slice":  # one row, by a constant index
            row = rng.randrange(rows)
            einsums.append(
                einsum(
                    f"{out}[0,{n}] = relu({a}[{row},{n}])", {n: columns}, f"e{i}", sizes={a: (rows, columns)}
                )
            )
            shapes[out] = (1, columns)
        elif kind == "square":  # a tensor read twice
            einsums.append(
                einsum(
                    f"{out}[{m},{n}] += {a}[{m},{k}] * {a}_again[{n},{k}]",
                    {m: rows, n: rows, k: columns},
                    f"e{i}",
                )
            )
            shapes[out] = (rows, rows)
        elif kind == "total" and i == count - 1:  # a scalar, which no later einsum reads
            einsums.append(
                einsum(f"{out}[] += {a}[{m},{n}] * {a}_again[{m},{n}]", {m: rows, n: columns}, f"e{i}")
            )
        else:
            wide = size(rng, pipelined)
            einsums.append(
                einsum(
                    f"{out}[{m},{n}] += {a}[{m},{k}] * W{i}[{k},{n}]", {m: rows, n: wide, k: columns}, f"e{i}"
                )
            )
            shapes[out], weights = (rows, wide), weights | {f"W{i}"}
    return Workload("random", tuple(einsums), frozenset(weights))


def size(rng: Random, even: bool) -> int:
    return rng.choice([2, 4, 6] if even else [1, 2, 3, 4, 5, 6, 7])


def random_schedule(rng: Random) -> tuple[Arch, Workload, Schedule]:
    """One that passes all checks and has lanes enough; what does not is drawn again."""
    while True:
        pipelined = rng.random() < 0.4
        workload = random_workload(rng, rng.randint(2, 4), pipelined)
        arch = stage_arch(rng) if pipelined else random_arch(rng)
        arch = replace(
            arch, levels=(arch.levels[0], *(replace(level, bypass=True) for level in arch.levels[1:]))
        )
        weights = rng.choice(["streamed", "streamed", "pinned"])
        segments = tuple(
            random_segment(rng, arch, workload, part, pipelined, weights == "pinned")
            for part in cut(rng, workload)
        )
        schedule = Schedule(
            segments,
            tuple(sorted(random_keeps(rng, arch, workload), key=lambda one: (one.level, one.tensor))),
            weights,
        )
        if not faults(arch, workload, schedule) and isinstance(evaluate(arch, workload, schedule), Solution):
            return arch, workload, schedule


def widened_schedule(rng: Random) -> tuple[Arch, Workload, Schedule]:
    """One of einsums in turn, on a machine with levels that narrow or widen elements of some roles."""
    while True:
        arch, workload, schedule = random_schedule(rng)
        widths = [
            tuple((role, rng.choice([4, 16, 24])) for role in ROLES if rng.random() < 0.4)
            for _ in arch.levels[1:]
        ]
        inner = [replace(level, bits=bits) for level, bits in zip(arch.levels[1:], widths, strict=True)]
        arch = replace(arch, levels=(arch.levels[0], *inner))
        if (
            arch.narrows_or_widens()
            and not schedule.is_unfused()
            and not faults(arch, workload, schedule)
            and isinstance(evaluate(arch, workload, schedule), Solution)
        ):
            return arch, workload, schedule


def stage_arch(rng: Random) -> Arch:
    """Lanes that stages share out, and lanes inside of them."""
    levels = tuple(
        Level(
            f"L{v}",
            None,
            8,
            1.0,
            1.0,
            rng.choice([1.0, 8.0]),
            double_buffer=v > 0 and rng.random() < 0.3,
            bypass=v > 0,
            skip_first_read=rng.random() < 0.8,
        )
        for v in range(rng.randint(2, 4))
    )
    outside = rng.randint(1, len(levels) - 1)
    flags = (rng.random() < 0.6, rng.random() < 0.6)
    fanouts = [Fanout("nodes", outside, (("U", 4), ("V", 8)), flags, flags)]
    if rng.random() < 0.6:
        fanouts.append(
            Fanout(
                "array",
                rng.randint(outside + 1, len(levels)),
                (("X", 3),),
                (rng.random() < 0.6,),
                (rng.random() < 0.6,),
            )
        )
    return Arch("random", levels, tuple(fanouts), Compute(1.0, 0.5, merge_pj=0.25), 1.0, 8)


def cut(rng: Random, workload: Workload) -> Iterator[list[Einsum]]:
    part: list[Einsum] = []
    for e in workload.einsums:
        if part and rng.random() < 0.25:
            yield part
            part = []
        part.append(e)
    yield part


def random_keeps(rng: Random, arch: Arch, workload: Workload) -> Iterator[Retained]:
    first = max(min((f.outside for f in arch.fanouts), default=len(arch.levels)), 2)
    made = {e.output.tensor for e in workload.einsums}
    for tensor in dict.fromkeys(p.tensor for e in workload.einsums for p in e.inputs):
        users = [e.name for e in workload.einsums if tensor in {p.tensor for p in e.tensors()}]
        if len(arch.levels) > 1 and len(users) > 1 and rng.random() < (0.5 if tensor in made else 0.3):
            readers = users[1:-1]
            shares = rng.sample(
                [Fraction(n) for n in ("1", "1/2", "1/3", "3/7", "1/9", "0")],
                1 + rng.randint(0, len(readers)),
            )
            then = tuple(
                zip(sorted(rng.sample(readers, len(shares) - 1), key=readers.index), shares[1:], strict=True)
            )
            yield Retained(
                arch.levels[rng.randint(1, first - 1)].name,
                tensor,
                shares[0] if any(shares) else Fraction(1, 2),
                then,
            )


def axes(part: list[Einsum]) -> list[dict[str, str]]:
    """Ranks that are one and the same, by einsum: joined by the dimensions of the tensors that they cut."""
    group = {(e.name, rank): {(e.name, rank)} for e in part for rank in e.sizes()}
    places: dict[tuple[str, int], tuple[str, str]] = {}
    for e in part:
        for p in e.tensors():
            for at, d in enumerate(p.dims):
                if len(d.terms) == 1:
                    one = (e.name, d.terms[0][0])
                    other = places.setdefault((p.tensor, at), one)
                    if group[one] is not group[other]:
                        joined = group[one] | group[other]
                        for member in joined:
                            group[member] = joined
    found = {tuple(sorted(members)) for members in group.values()}
    return [
        dict(members)
        for members in sorted(found)
        if len(members) == len(part) == len({name for name, _ in members})
    ]


def random_segment(
    rng: Random, arch: Arch, workload: Workload, part: list[Einsum], pipelined: bool, pinned: bool
) -> Segment:
    f = arch.fanouts[0] if pipelined else None
    left = {e.name: e.sizes() for e in part}
    names = [p.tensor for e in part for p in e.tensors()]
    made = {e.output.tensor for e in part}
    handed = [t for t in dict.fromkeys(names) if names.count(t) > 1 and t in made]
    elsewhere = {p.tensor for e in workload.einsums for p in e.inputs if e not in part}
    read = {p.tensor for e in workload.einsums for p in e.inputs}
    common = axes(part)
    if rng.random() < 0.3:  # and one of equal ranks that may have nothing to do with each other
        drawn = {e.name: rng.choice(list(e.sizes())) for e in part}
        common += (
            [drawn] if len({e.sizes()[drawn[e.name]] for e in part}) == 1 and drawn not in common else []
        )
    deepest = f.outside if f else rng.randint(1, len(arch.levels))
    order: dict[str, int] = {}  # tensor -> the innermost level that a shared node holds it at
    nodes: list[Loop | Store] = []
    outer = [t for t in dict.fromkeys(names) if not free(t, handed, elsewhere, read, workload, pinned, rng)]
    place(
        rng, nodes, order, [t for t in outer if t in handed or names.count(t) == 1 or rng.random() < 0.5], 0
    )
    for level in range(0, deepest):
        if not f:
            for fan in arch.fanouts:
                if level and fan.outside == level and common and rng.random() < 0.4:
                    shared_loop(rng, common, left, part, nodes, rng.choice(fan.dims))
        if level:
            place(
                rng,
                nodes,
                order,
                [t for t in dict.fromkeys(names) if rng.random() < (0.5 if t in handed else 0.2)],
                level,
            )
        while common and rng.random() < (0.6 if level == deepest - 1 else 0.3):
            shared_loop(rng, common, left, part, nodes, None, even=pipelined)
    inner = f.outside if f else deepest - 1
    place(
        rng,
        nodes,
        order,
        [t for t in handed if t not in order or (f is not None and rng.random() < 0.7)],
        inner,
    )
    if rng.random() < 0.2:
        nodes = [
            node
            for node in nodes
            if not (isinstance(node, Store) and node.tensor in handed and node.level == arch.levels[0].name)
        ]
    named = tuple(
        replace(node, level=f"L{node.level}") if isinstance(node, Store) else node for node in nodes
    )
    (down, rows), (along, columns) = f.dims if f else (("", 0), ("", 0))
    width = max(columns // len(part), 1)
    branches = []
    for j, e in enumerate(part):
        region = (
            (
                Region(along, j * width, rng.randint(1, width)),
                *((Region(down, 0, rng.randint(1, rows)),) if rng.random() < 0.6 else ()),
            )
            if f
            else ()
        )
        ranks = tuple(
            sorted(
                (a[part[0].name], a[e.name])
                for a in common
                if a[part[0].name] != a[e.name]
                and any(isinstance(n, Loop) and n.rank == a[part[0].name] for n in nodes)
            )
        )
        branches.append(
            own_nest(rng, arch, e, left[e.name], order, deepest, region, ranks, f, pinned, workload, outer)
        )
    if len(part) == 1 and not f:  # shared by nobody: its own
        own = branches[0].mapping
        return Segment((replace(branches[0], mapping=replace(own, nodes=(*named, *own.nodes))),))
    return Segment(tuple(branches), named)


def free(
    t: str,
    handed: list[str],
    elsewhere: set[str],
    read: set[str],
    workload: Workload,
    pinned: bool,
    rng: Random,
) -> bool:
    """Whether a tensor may do without a node at the outermost level."""
    if t in handed and t not in elsewhere and t in read:
        return rng.random() < 0.7
    return pinned and t in workload.weights and rng.random() < 0.8


def place(rng: Random, nodes: list, order: dict[str, int], tensors: list[str], level: int) -> None:
    rng.shuffle(tensors)
    for t in tensors:
        if order.get(t, -1) < level:
            order[t] = level
            nodes.append(Store(level, t))  # type: ignore[arg-type]


def shared_loop(
    rng: Random,
    common: list,
    left: dict,
    part: list[Einsum],
    nodes: list,
    over: tuple[str, int] | None,
    even: bool = False,
) -> None:
    axis = rng.choice(common)
    extent = left[part[0].name][axis[part[0].name]]
    if over and any(isinstance(n, Loop) and n.over == over[0] for n in nodes):
        return
    tiles = [
        n
        for n in range(1, extent + 1)
        if (not even or extent % n == 0) and (not over or -(-extent // n) <= over[1])
    ]
    tile = rng.choice(tiles)
    nodes.append(Loop(axis[part[0].name], tile, over[0] if over else ""))
    for e in part:
        left[e.name][axis[e.name]] = tile


def own_nest(
    rng: Random,
    arch: Arch,
    e: Einsum,
    left: dict,
    order: dict,
    deepest: int,
    region: tuple,
    ranks: tuple,
    f: Fanout | None,
    pinned: bool,
    workload: Workload,
    outer: list[str],
) -> Branch:
    nodes: list[Loop | Store] = []
    held: list[Store] = []
    first = max((fan.outside for fan in arch.fanouts if fan.outside < deepest), default=0)
    sizes = {one.dim: one.size for one in region}
    used = set()
    for level in range(first, len(arch.levels) + 1):
        for fan in arch.fanouts:
            for dim, lanes in fan.dims if fan.outside == level and level >= deepest else ():
                lanes = sizes.get(dim, lanes)
                choices = (
                    sorted(e.output.full_ranks())
                    if fan is f and rng.random() < 0.8
                    else sorted(set(left) - e.output.partial_ranks())
                )
                if rng.random() < 0.7 and dim not in used and choices:
                    rank = rng.choice(choices)
                    tiles = [
                        n
                        for n in range(1, left[rank] + 1)
                        if -(-left[rank] // n) <= lanes and (fan is not f or left[rank] % n == 0)
                    ]
                    left[rank] = rng.choice(tiles)
                    nodes.append(Loop(rank, left[rank], dim))
                    used.add(dim)
        if level == len(arch.levels):
            break
        for p in rng.sample(e.tensors(), len(e.tensors())):
            last = order.get(p.tensor, -1)
            must = (
                level == first
                and last < 0
                and (p.tensor not in workload.weights or not pinned or p.tensor in outer)
            )
            if last >= level or not ((must and level == 0) or rng.random() < 0.6):
                continue
            if nodes and level and rng.random() < 0.4:
                temporal(rng, left, nodes)
            nodes.append(Store(f"L{level}", p.tensor))
            straight = all(isinstance(n, Store) or n.over for n in nodes)
            if f and p is not e.output and straight and level >= f.outside and rng.random() < 0.4:
                held.append(Store(f"L{level}", p.tensor))
        while rng.random() < 0.3:
            temporal(rng, left, nodes)
    rest = [rank for rank, n in left.items() if n > 1]
    rng.shuffle(rest)
    return Branch(e.name, Mapping((*nodes, *(Loop(rank, 1) for rank in rest))), ranks, region, tuple(held))


def temporal(rng: Random, left: dict, nodes: list) -> None:
    rank = rng.choice(list(left))
    left[rank] = rng.randint(1, left[rank])
    nodes.append(Loop(rank, left[rank]))
