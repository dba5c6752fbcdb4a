"""Random small workloads on few nodes, and what `solver.schedule = pipelined` answers for them against
listings of all pipelines.

Two listings: of chains on a row of nodes without leakage each nest priced by the evaluator, without any bound
(`least`; shares the evaluator with dse/solve, and the list of all mappings of one node with the proofs of the
mapper); of other graphs, grids, machines that leak and cycles the one that is cut by bound
(`tests/enumerated_pipelines.py`). An answer must cost no less than the best listed one, unless the published
solver or the mapper found it outside of the listed space, and the best that its gap allows must not lie above
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf
from random import Random

from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.mapping.schedule import Branch, Region, Schedule, Segment
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, Violated, einsum_cost, objective_value
from dse.sim.fronts import Objective
from dse.sim.schedule import placed
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate
from dse.solve.options import SolverOptions
from dse.solve.schedules.segments import PipelineSearch
from dse.solve.schedules.stages import Nodes
from dse.solve.solve import solve
from hw.arch import Arch, Compute, Fanout, Level
from tests.enumerated_pipelines import enumerated, small
from tests.enumeration import mappings, size
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

COLUMNS = 3
MOST = 200  # mappings of a node
CLOSE = 1e-9
WAYS = 300  # nests of all parts of an einsum, at most, where graphs are listed


def small_machine(rng: Random) -> Arch:
    levels = (
        Level("DRAM", None, 8, rng.choice([20.0, 200.0]), rng.choice([20.0, 100.0]), 4.0, bypass=False),
        Level("BUF", 8 * rng.choice([10, 14, 20, 40]), 8, 2.0, 3.0, 8.0, bypass=False),
    )
    mesh = Fanout(
        "NODES",
        1,
        (("NY", 1), ("NX", COLUMNS)),
        (True, True),
        (True, True),
        "",
        rng.choice([0.0, 0.5]),
        0.0,
        "corners",
        rng.choice(["next_level", "same_level"]),
    )
    return Arch("row", levels, (mesh,), Compute(1.0, 0.5), 1.0, 8, overlap="free")


def small_workload(rng: Random) -> Workload:
    """Chains of two to six products of at most eighteen multiplications each."""
    wide, found, weights = [rng.choice([2, 3]) for _ in range(7)], [], set()
    m = rng.choice([2, 3])
    for i in range(rng.choice([2, 2, 3, 4, 5, 6])):
        found.append(
            einsum(
                f"T{i}[m,n] += {f'T{i - 1}' if i else 'X'}[m,k] * W{i}[k,n]",
                {"m": m, "k": wide[i], "n": rng.choice([1, wide[i + 1]])},
                f"e{i}",
            )
        )
        wide[i + 1] = found[-1].sizes()["n"]
        weights.add(f"W{i}")
    return Workload("small", tuple(found), frozenset(weights))


def random_case(seed: int) -> tuple[Arch, Workload, str]:
    rng = Random(seed)
    while True:
        arch, workload = small_machine(rng), small_workload(rng)
        if all(size(e, replace(arch, fanouts=()), "perfect", limit=MOST) <= MOST for e in workload.einsums):
            return (
                arch,
                workload,
                rng.choice(["streamed", "pinned"]) if len(workload.einsums) <= COLUMNS else "streamed",
            )


def splits(e: Einsum, columns: int) -> Iterator[tuple[Loop, ...]]:
    """How so many nodes in a row may share an einsum out: every rank, every tile, one or two of them."""
    yield ()
    ranks = [rank for rank, n in e.extents if n > 1]
    for a in ranks:
        yield from ((Loop(a, t, "NX"),) for t in range(1, e.sizes()[a]) if -(-e.sizes()[a] // t) <= columns)
        for b in (b for b in ranks if b != a):
            for s, t in product(range(1, e.sizes()[a]), range(1, e.sizes()[b])):
                if -(-e.sizes()[a] // s) * -(-e.sizes()[b] // t) <= columns:
                    yield Loop(a, s, "NX"), Loop(b, t, "NX")


def nests(e: Einsum, arch: Arch, split: tuple[Loop, ...]) -> list[Mapping]:
    """What a node may do with its part, from the buffer inwards."""
    part = replace(
        e,
        extents=tuple(
            (rank, next((loop.tile for loop in split if loop.rank == rank), n)) for rank, n in e.extents
        ),
    )
    return list(mappings(Problem(replace(arch, fanouts=()), part, "energy"), "perfect", "tensors"))


def own(nest: Mapping, split: tuple[Loop, ...], home: str) -> Mapping:
    """Below the shared nodes; a result that is handed on has its node there."""
    return Mapping(
        (
            *split,
            *(
                node
                for node in nest.nodes
                if not (isinstance(node, Store) and (node.level == "DRAM" or node.tensor == home))
            ),
        )
    )


Listed = tuple[float, float]  # no schedule costs less; a schedule that fits costs so much


def least(arch: Arch, workload: Workload, weights: str) -> Listed:
    """The least energy of all schedules in which neighbours are stages or run in turn; weights that are
    pinned stand in nodes of one segment at most. Stages are priced one by one: where their tiles do not fit
    beside each other, only the first figure knows them.
    """
    n = len(workload.einsums)
    if weights == "pinned":  # all that is pinned takes room in every segment: listed where one segment is all
        return segment(arch, workload, 0, n, weights)
    bound, fitting = [0.0] + [inf] * n, [0.0] + [inf] * n
    for last in range(1, n + 1):
        for first in range(last):
            low, fits = segment(arch, workload, first, last, weights)
            bound[last] = min(bound[last], bound[first] + low)
            fitting[last] = min(fitting[last], fitting[first] + fits)
    return bound[n], fitting[n]


def segment(arch: Arch, workload: Workload, first: int, last: int, weights: str) -> Listed:
    """All at once, or in granules of a loop over m that all share."""
    tiles = [
        t
        for t in range(1, workload.einsums[first].sizes()["m"] + 1)
        if workload.einsums[first].sizes()["m"] % t == 0
    ]
    found = [
        granular(arch, workload, first, last, weights, t) for t in (tiles if last - first > 1 else tiles[-1:])
    ]
    return min(low for low, _ in found), min(fits for _, fits in found)


def granular(arch: Arch, workload: Workload, first: int, last: int, weights: str, tile: int) -> Listed:
    """In granules of so many m. Einsums are a chain: what a stage costs depends on its own lanes, its nest,
    and the lanes of the stage before it.
    """
    members = workload.einsums[first:last]
    part = Workload("", members, workload.weights)
    handed = [e.output.tensor for e in members[:-1]]
    pinned = workload.weights if weights == "pinned" else frozenset()
    far = [
        t
        for t in dict.fromkeys(p.tensor for e in members for p in e.tensors())
        if t not in handed and t not in pinned
    ]
    loop = (Loop("m", tile),) if tile < members[0].sizes()["m"] else ()
    shared = (*(Store("DRAM", t) for t in far), *loop, *(Store("BUF", t) for t in handed))
    granules = [
        replace(e, extents=tuple((rank, tile if rank == "m" else n) for rank, n in e.extents))
        for e in members
    ]
    listed = {(j, cut): nests(e, arch, cut) for j, e in enumerate(granules) for cut in splits(e, COLUMNS)}
    known: dict[tuple[object, ...], tuple[float, Mapping | None]] = {}
    bound = fitting = inf
    for starts in intervals(len(members)):
        for cuts in product(*(list(splits(e, n)) for e, (_, n) in zip(granules, starts, strict=True))):
            total, chosen = 0.0, list[Mapping]()
            for j, cut in enumerate(cuts):
                key = j, starts[max(j - 1, 0) : j + 1], cuts[max(j - 1, 0) : j + 1]
                if key not in known:
                    others = [raised(listed[i, other]) for i, other in enumerate(cuts)]
                    homes = [e.output.tensor if e.output.tensor in handed else "" for e in members]
                    known[key] = cheapest(
                        arch,
                        part,
                        shared,
                        weights,
                        members,
                        starts,
                        j,
                        list(dict.fromkeys(own(n, cut, homes[j]) for n in listed[j, cut])),
                        [own(other, cuts[i], homes[i]) for i, other in enumerate(others)],
                        len(members) < len(workload.einsums),
                    )
                total += known[key][0]
                chosen += [nest] if (nest := known[key][1]) else []
            bound = min(bound, total)
            if total < fitting:
                plan = Schedule((Segment(_stages(members, chosen, starts), shared),), weights=weights)
                fitting = total if isinstance(evaluate(arch, part, plan), Solution) else fitting
    return bound, fitting


def _stages(
    members: Sequence[Einsum], nests: Sequence[Mapping], starts: Sequence[tuple[int, int]]
) -> tuple[Branch, ...]:
    return tuple(
        Branch(e.name, nest, (), (Region("NX", at, n),) if len(members) > 1 else ())
        for e, nest, (at, n) in zip(members, nests, starts, strict=True)
    )


def raised(listed: list[Mapping]) -> Mapping:
    """One with all nodes above all loops: nobody finds fault with it in a stage."""
    return next(
        nest
        for nest in listed
        if not any(
            isinstance(node, Loop) for node in nest.nodes[: sum(isinstance(n, Store) for n in nest.nodes)]
        )
    )


def cheapest(
    arch: Arch,
    part: Workload,
    shared: tuple[Loop | Store, ...],
    weights: str,
    members: tuple[Einsum, ...],
    starts: tuple[tuple[int, int], ...],
    j: int,
    listed: list[Mapping],
    others: list[Mapping],
    rest: bool,
) -> tuple[float, Mapping | None]:
    """The least energy of stage j over its nests, in its PEs, and the nest; inf: none fits, or is one. rest:
    other segments run between two runs of this one.
    """

    def schedule(nest: Mapping) -> Schedule:
        stages = _stages(members, [*others[:j], nest, *others[j + 1 :]], starts)
        return Schedule((Segment(stages, shared),), weights=weights)

    # what stands around a stage is the same for all its nests
    one = placed.placed_segments(arch, part, schedule(listed[0]), part=rest)[0][j]
    best, least_nest = inf, None
    for nest in listed:
        try:
            cost = einsum_cost(Problem(one.arch, one.einsum, "energy", one.boundary), nest)
        except ValueError:  # hops of such a nest are not counted
            continue
        if isinstance(cost, EinsumCost) and cost.energy_pj < best and not faults(arch, part, schedule(nest)):
            best, least_nest = cost.energy_pj, nest
    return best, least_nest


def intervals(many: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Rows of columns side by side, in any order: (first, how many) per stage; none if there are fewer
    columns than stages.
    """
    if many == 1:
        yield ((0, COLUMNS),)
        return
    for chosen in (
        ()
        if many > COLUMNS
        else product(*[[(at, n) for at in range(COLUMNS) for n in range(1, COLUMNS - at + 1)]] * many)
    ):
        if all(a + n <= b or b + m <= a for i, (a, n) in enumerate(chosen) for b, m in chosen[i + 1 :]):
            yield chosen


def drawn(rng: Random, arch: Arch, workload: Workload) -> Schedule:
    """Any schedule of the space, weights streamed; it may not fit."""
    ends, segments = (
        [0, *sorted(rng.sample(range(1, n), rng.randint(0, n - 1))), n]
        if (n := len(workload.einsums)) > 1
        else [0, n],
        [],
    )
    for first, last in pairwise(ends):
        members = workload.einsums[first:last]
        handed = {e.output.tensor for e in members[:-1]}
        m = members[0].sizes()["m"]
        tile = rng.choice([t for t in range(1, m + 1) if m % t == 0]) if handed else m
        far = [t for t in dict.fromkeys(p.tensor for e in members for p in e.tensors()) if t not in handed]
        places = (
            rng.choice(list(intervals(len(members)))) if len(members) <= COLUMNS else ((0, 1),) * len(members)
        )
        branches = []
        for e, (at, n) in zip(members, places, strict=True):
            part = replace(
                e, extents=tuple((rank, tile if rank == "m" else size) for rank, size in e.extents)
            )
            cut = rng.choice(list(splits(part, n)))
            nest = own(
                rng.choice(nests(part, arch, cut)), cut, e.output.tensor if e.output.tensor in handed else ""
            )
            branches.append(Branch(e.name, nest, (), (Region("NX", at, n),) if len(members) > 1 else ()))
        loop = (Loop("m", tile),) if tile < m else ()
        segments.append(
            Segment(
                tuple(branches),
                (*(Store("DRAM", t) for t in far), *loop, *(Store("BUF", t) for t in sorted(handed))),
            )
        )
    return Schedule(tuple(segments))


def answer(
    arch: Arch, workload: Workload, objective: Objective, weights: str = "streamed"
) -> Solution | Infeasible:
    """The answer that networks get."""
    options = SolverOptions(objective=objective, schedule="pipelined", weights=weights, gap=0.0)  # type: ignore[arg-type]
    found = solve(arch, workload, options)
    return found if isinstance(found, Infeasible) else found[0]


def cheaper(seed: int, tries: int) -> tuple[str, int]:
    """A schedule of the space that is cheaper than the gap of an answer allows, on a machine that leaks, by
    energy or cycles; and how many were priced.
    """
    arch, workload, _ = random_case(seed)
    rng = Random(seed)
    arch = replace(
        arch, levels=(replace(arch.levels[0], leak_mw=rng.choice([1.0, 20.0, 400.0])), *arch.levels[1:])
    )
    objective: Objective = rng.choice(["energy", "latency"])  # type: ignore[assignment]
    found = answer(arch, workload, objective)
    if isinstance(found, Infeasible):
        return "", 0
    best, many = (
        objective_value(objective, found.energy_pj, found.latency_cycles) / (1 + found.optimality_gap),
        0,
    )
    for _ in range(tries):
        schedule = drawn(rng, arch, workload)
        try:
            other = evaluate(arch, workload, schedule, objective)
        except ValueError:
            continue
        if isinstance(other, Infeasible):
            continue
        many += 1
        if objective_value(objective, other.energy_pj, other.latency_cycles) < best * (1 - CLOSE):
            return (
                f"seed {seed}: {objective} at least {best}, drawn {other.energy_pj}, "
                f"{other.latency_cycles}\n{schedule}\n{found.schedule}",
                many,
            )
    return "", many


@dataclass(frozen=True, slots=True)
class Compared:
    """An answer against the best of a listing. wrong: a false claim, "" if there is none; above: share that
    it costs more; gap: share that it says at most.
    """

    wrong: str
    above: float = 0.0
    gap: float = 0.0


def compared(seed: int, hop_pj: float = -1.0) -> Compared:
    """The answer to a random chain against all of its pipelines. hop_pj: not that of the case."""
    arch, workload, weights = random_case(seed)
    arch = arch if hop_pj < 0 else replace(arch, fanouts=(replace(arch.fanouts[0], hop_pj=hop_pj),))
    best, fitting = least(arch, workload, weights)
    # pinned weights are listed where one segment is all
    known = weights == "streamed" or len(workload.einsums) == 1
    return _against(f"seed {seed}", arch, workload, "energy", weights, best, known, fitting)


def _against(
    name: str,
    arch: Arch,
    workload: Workload,
    objective: Objective,
    weights: str,
    best: float,
    known: bool,
    fitting: float = inf,
) -> Compared:
    """known: whether nothing costs less than the best listed. fitting: the best listed that fits, if another
    one.
    """
    try:
        found = answer(arch, workload, objective, weights)
    except Violated as fault:
        return Compared(f"{name}: {fault}")
    if isinstance(found, Infeasible):
        return Compared(f"{name}: {found}, listed {best}" if best < inf else "")
    cost = objective_value(objective, found.energy_pj, found.latency_cycles)
    if cost / (1 + found.optimality_gap) > best * (1 + CLOSE):
        return Compared(
            f"{name}: {cost}, said to lie at most {found.optimality_gap} above the optimum, the best "
            f"listed {best}\n{found.schedule}"
        )
    known = known or (weights == "pinned" and len(found.segments) == 1)
    if cost < best * (1 - CLOSE) and known:
        return Compared(f"{name}: {cost}, the best listed {best}\n{found.schedule}")
    reached = fitting if fitting < inf else best
    return Compared("", max(cost / reached - 1, 0.0) if reached < inf else 0.0, found.optimality_gap)


def small_grid(rng: Random) -> Arch:
    """Few nodes in rows and columns, which leak, with or without registers inside, that add up sums on the
    way or do not.
    """
    levels = [
        Level(
            "DRAM",
            None,
            8,
            rng.choice([20.0, 200.0]),
            rng.choice([20.0, 100.0]),
            rng.choice([1.0, 4.0]),
            bypass=False,
            leak_mw=rng.choice([0.0, 5.0, 100.0]),
        ),
        Level(
            "BUF",
            8 * rng.choice([10, 14, 20, 40]),
            8,
            2.0,
            3.0,
            rng.choice([1.0, 8.0]),
            bypass=rng.random() < 0.2,
        ),
    ]
    rows, columns = rng.choice([(1, 2), (1, 3), (2, 2), (2, 1)])
    both = (True, True) if rng.random() < 0.8 else (False, False)
    mesh = Fanout(
        "NODES",
        1,
        (("NY", rows), ("NX", columns)),
        both,
        both,
        "",
        rng.choice([0.0, 0.5, 8.0]),
        0.0,
        "corners",
        rng.choice(["next_level", "same_level"]),
    )
    return Arch("grid", tuple(levels), (mesh,), Compute(1.0, 0.5), 1.0, 8, overlap="free")


def small_graph(rng: Random) -> Workload:
    """Two or three einsums that are no plain chain: a tensor read twice, sums that a next one adds up,
    element by element, windows, ranks of extent 1.
    """
    m, n, k, o = rng.choice([2, 3]), rng.choice([1, 2, 3]), rng.choice([2, 3]), rng.choice([1, 2])
    sizes = {"m": m, "n": n, "k": k}
    first = einsum("A[m,n] += X[m,k] * U[k,n]", sizes, "a")
    shapes = {
        "gated": (
            first,
            einsum("B[m,n] += X[m,k] * V[k,n]", sizes, "b"),
            einsum("Y[m,n] = A[m,n] * B[m,n]", {"m": m, "n": n}, "c"),
        ),
        "residual": (
            first,
            einsum("B[m,o] += A[m,n] * V[n,o]", {"m": m, "n": n, "o": n}, "b"),
            einsum("Y[m,o] = B[m,o] + A[m,o]", {"m": m, "o": n}, "c"),
        ),
        "summed": (first, einsum("Y[n,o] += A[m,n] * V[m,o]", {"m": m, "n": n, "o": o}, "b")),
        "windows": (
            einsum("A[b,p] += X[b,c,p] * U[c]", {"b": m, "p": 3, "c": k}, "a"),
            einsum("Y[b,z] += A[b,z+r] * V[r]", {"b": m, "z": 2, "r": 2}, "b"),
        ),
    }
    return Workload("small", shapes[rng.choice(list(shapes))], frozenset({"U", "V"}))


def grid_case(seed: int) -> tuple[Arch, Workload, Objective, str]:
    """One that `enumerated_pipelines` can list."""
    rng = Random(f"grid {seed}")
    while True:
        arch, workload, weights = (
            small_grid(rng),
            small_graph(rng),
            rng.choice(["streamed", "streamed", "pinned"]),
        )
        objective: Objective = rng.choice(["energy", "latency"])  # type: ignore[assignment]
        if small(PipelineSearch(arch, workload, objective, weights, Nodes(arch)), WAYS):
            return arch, workload, objective, weights


def enumerated_case(seed: int) -> Compared:
    """The answer to a random graph on a grid against all of its pipelines, by energy or cycles."""
    arch, workload, objective, weights = grid_case(seed)
    best = enumerated(arch, workload, objective, weights)
    cost = (
        inf
        if isinstance(best, Infeasible)
        else objective_value(objective, best.energy_pj, best.latency_cycles)
    )
    return _against(f"grid seed {seed}, {objective}", arch, workload, objective, weights, cost, known=False)
