"""Legal schedules of random small graphs, drawn from the whole notation and from answers that are changed
step by step; what every solver claims held against each (`make prove PART=claims`).

An answer that nothing fits is a claim as well (`Refusal`); a third of the machines that `make prove` draws
are tight, so that there are many. A claim: no schedule of the searched space costs less than answer / (1 +
optimality gap), and none at all less than answer / (1 + gap to the lower bound); of an unfused answer the
bound is of unfused schedules. Schedules that cost little are changed again, of each claim the cheapest that
it covers: so what is drawn comes near to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from dse.mapping.nest import Infeasible, Loop, Rotated, Store
from dse.mapping.schedule import Branch, Region, Retained, Schedule, Segment, load, sequential
from dse.mapping.searched import Space, covers
from dse.sim.einsum.evaluate import Solution, Violated, gap_in_space_text, objective_value
from dse.sim.schedule import outermost
from dse.sim.schedule.graph import evaluate
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from hw import machine
from hw.arch import Arch
from tests.rates import RATES
from tests.schedules import axes, cut, random_keeps, random_segment
from workloads import catalog
from workloads.einsum import Einsum
from workloads.graph import Workload, WorkloadError, base_tensor

CLOSE = 1e-9
NEAR = 1.5  # of the cheapest schedule known: one that costs no more is changed again
POOL = 40  # schedules that may be changed again
SCRATCH = 0.1  # of what is drawn is drawn from scratch
HOPELESS = 3  # times as many, where none is found
ROOMY = 4096  # words of a level
MOST_TRIED = 30  # times as many are tried at most: most are no legal schedule
Answer = tuple[dict[str, Any], Solution | Infeasible]  # a solver's options, what it says
Covers = Callable[["Claim", Schedule, "Case"], str | None]

MACHINE = """clock_mhz: 1000
word_bits: 8
overlap: {overlap}
nodes:
- {{memory: l0, kind: custom, width_bits: 8, read_pj: {dram}, write_pj: {dram}, actions_per_cycle: {rate},
  leak_mw: {leak}, area_mm2: 0}}
"""
NODES = (
    "- {{array: nodes, dims: {{ny: {rows}, nx: {columns}}}, hop_pj: {hop}, injected_at: corners, "
    "multicast_from: {source}, multicast: {flag}, reduce: {flag}}}\n"
)
BUFFER = (
    "- {{memory: l1, kind: custom, capacity: {room} B, width_bits: 8, read_pj: 3, write_pj: 3, "
    "actions_per_cycle: {rate}, bypass: {bypass}, double_buffer: {double}, leak_mw: 0, area_mm2: 0}}\n"
)
INSIDE = (
    "- {{array: array, dims: {{y: {rows}, x: {columns}}}, multicast: true, reduce: {flag}, hop_pj: {hop}}}\n"
    "- {{memory: l2, kind: custom, capacity: {room} B, width_bits: 8, read_pj: 0.1, write_pj: 0.1, "
    "actions_per_cycle: inf, leak_mw: 0, area_mm2: 0}}\n"
)
COMPUTE = (
    "- {{compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, merge_pj: 0.5, ops_per_cycle: {rate}, "
    "leak_mw: {leak}, area_mm2: 0}}\n"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A workload on a machine, and the files that say them."""

    graph: str
    machine: str
    workload: Workload
    arch: Arch


@dataclass(frozen=True, slots=True)
class Claim:
    """What a solver answers. value: in its objective; weights: of its schedules; unfused: whether its bound
    is of unfused schedules alone.
    """

    solver: str
    objective: str
    weights: str
    found: Solution
    unfused: bool

    @property
    def value(self) -> float:
        return objective_value(self.objective, self.found.energy_pj, self.found.latency_cycles)

    @property
    def name(self) -> str:
        return f"{self.solver}{' pinned' * (self.weights == 'pinned')}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a solver answers where nothing fits: of no schedule, if `space` is None, else of none of that
    space.
    """

    solver: str
    weights: str
    found: Infeasible
    space: Space | None

    @property
    def name(self) -> str:
        return f"{self.solver}{' pinned' * (self.weights == 'pinned')}"


@dataclass(slots=True)
class Tally:
    """Of one solver: schedules held against it, those that its claim covers, the least ratio of price and
    claim, failures.

    asked, refused: answers, and those of them that claim that nothing fits; fitting: schedules that fit, held
    against these.
    """

    asked: int = 0
    refused: int = 0
    fitting: int = 0
    drawn: int = 0
    covered: int = 0
    least: float = inf
    bound: float = inf
    failures: list[str] = field(default_factory=list)
    excluded: dict[str, int] = field(default_factory=dict)


def random_machine(rng: Random, nodes: bool) -> str:
    """With an array of nodes around buffers, or one buffer outside of all lanes; text of the YAML file."""
    flag = rng.choice(["true", "true", "false"])
    text = MACHINE.format(
        overlap=rng.choice(["free", "free", "buffered"]),
        dram=rng.choice([20, 100]),
        rate=rng.choice([1.0, 2.0]),
        leak=rng.choice([0, 0, 10, 100]),
    )
    if nodes:
        rows, columns = rng.choice([(1, 2), (1, 3), (2, 2)])
        text += NODES.format(
            rows=rows,
            columns=columns,
            hop=rng.choice([0, 0.5, 4]),
            source=rng.choice(["same_level", "next_level"]),
            flag=flag,
        )
    double = rng.choice(["true", "false"]) if "buffered" in text else "false"
    text += BUFFER.format(
        room=rng.choice([12, 20, 32, 64]),
        rate=rng.choice([2.0, 8.0]),
        bypass=rng.choice(["true", "true", "false"]),
        double=double,
    )
    if rng.random() < 0.5:
        text += INSIDE.format(
            rows=rng.choice([1, 2]),
            columns=2,
            flag=rng.choice(["true", "false"]),
            room=rng.choice([3, 4, 8]),
            hop=Random(f"hop {text}").choice([0, 0, 0.3]),
        )
    lane = Random(f"lane {text}")
    return text + COMPUTE.format(rate=lane.choice(RATES), leak=lane.choice([0, 0, 1, 30]))


def random_graph(rng: Random) -> str:
    """Two to five einsums; text of the YAML file."""
    shapes: dict[str, tuple[int, int]] = {"X": (rng.choice([2, 3, 4, 8]), rng.choice([1, 2, 4]))}
    weights, entries, extents = list[str](), list[str](), dict[str, int]()
    for i in range(rng.choice([2, 2, 2, 3, 3, 4, 5])):
        a = f"T{i - 1}" if i and rng.random() < 0.7 else rng.choice(list(shapes))
        m, n, k = (f"{rank}{i}" for rank in "mnk")
        text, shape, own = random_einsum(rng, i, a, shapes, (m, n, k))
        extents |= own
        if "W" in text:
            weights.append(f"W{i}")
        entries.append(text)
        shapes[f"T{i}"] = shape
    listed = "\n".join(f"- {text}" for text in entries)
    named = ", ".join(f"{rank}: {n}" for rank, n in extents.items())
    return f"name: drawn\nweights: [{', '.join(weights)}]\nextents: {{{named}}}\neinsums:\n{listed}\n"


def random_einsum(
    rng: Random, i: int, a: str, shapes: dict[str, tuple[int, int]], ranks: tuple[str, str, str]
) -> tuple[str, tuple[int, int], dict[str, int]]:
    """Its text, the shape of its result, its extents. a: what it reads."""
    (rows, columns), (m, n, k), out, wide = shapes[a], ranks, f"T{i}", rng.choice([1, 2, 3])
    alike = [t for t, shape in shapes.items() if shape == (rows, columns) and t != a]
    kind = rng.choice(
        ["gemm", "gemm", "gemm", "left", "crossed", "add", "map", "window", "constant", "scalar", "csr"]
    )
    if kind == "add" and alike:
        return (
            f'"{out}[{m},{n}] = {a}[{m},{n}] + {rng.choice(alike)}[{m},{n}]"',
            (rows, columns),
            {m: rows, n: columns},
        )
    if kind == "map":
        return f'"{out}[{m},{n}] = relu({a}[{m},{n}])"', (rows, columns), {m: rows, n: columns}
    if kind == "window" and columns > 2:
        return (
            f'"{out}[{m},{n}] += {a}[{m},{n}+{k}] * W{i}[{k}]"',
            (rows, columns - 1),
            {m: rows, n: columns - 1, k: 2},
        )
    if kind == "left":
        return (
            f'"{out}[{n},{m}] += W{i}[{n},{k}] * {a}[{k},{m}]"',
            (wide, columns),
            {n: wide, m: columns, k: rows},
        )
    if kind == "crossed":  # sums over what others share
        return (
            f'"{out}[{m},{n}] += {a}[{k},{m}] * {a}_again[{k},{n}]"',
            (columns, columns),
            {m: columns, n: columns, k: rows},
        )
    if kind == "constant":
        return f'"{out}[{m},{n}] += {a}[{m},0] * W{i}[{n}]"', (rows, wide), {m: rows, n: wide}
    if kind == "scalar":
        return f'"{out}[{m},{n}] += {a}[{k},{n}] * W{i}[{m}]"', (1, columns), {m: 1, n: columns, k: rows}
    widths = (
        "".join(
            f", {key}: {{W{i}: {n}}}"
            for key in ("index_bits", "pointer_bits")
            if (n := rng.choice([0, 0, 8, 32]))
        )
        if kind == "csr"
        else ""
    )
    density = f", density: {{W{i}: 0.5}}, format: {{W{i}: csr}}{widths}" if kind == "csr" else ""
    text = f'"{out}[{m},{n}] += {a}[{m},{k}] * W{i}[{k},{n}]"'
    return f"{{text: {text}{density}}}" if density else text, (rows, wide), {m: rows, n: wide, k: columns}


def tight(rng: Random, spec: str, workload: Workload) -> str:
    """A machine with hardly any room, or none: a word or two per tensor in levels that none may skip; at the
    outermost level about what einsums in turn need.
    """

    def room(text: str, level: str, sizes: Sequence[int]) -> str:
        return re.sub(
            rf"(memory: {level}, kind: custom,)( capacity: \d+ B,)?",
            rf"\1 capacity: {rng.choice(sizes)} B,",
            text,
        )

    if rng.random() < 0.7:
        spec = spec.replace("bypass: true", "bypass: false")
    if rng.random() < 0.6:
        spec = room(spec, "l1", (2, 3, 4, 5, 6, 8))
    if rng.random() < 0.4:
        spec = room(spec, "l2", (1, 2, 3))
    if rng.random() < 0.6:
        _, bits = outermost.peak(outermost.lifetimes(workload, 8), len(workload.einsums))
        spec = room(spec, "l0", [max(int(bits / 8 * part), 1) for part in (0.6, 0.75, 0.9, 0.95, 1.0)])
    return spec


def case_of(graph: str, spec: str, folder: Path) -> Case:
    """From the texts of its files. Raises WorkloadError or ComponentError."""
    (folder / "graph.yaml").write_text(graph)
    (folder / "machine.yaml").write_text(spec)
    return Case(
        graph,
        spec,
        catalog.load(str(folder / "graph.yaml"), fuse_elementwise=False),
        machine.arch(machine.load(str(folder / "machine.yaml"))),
    )


def random_case(seed: int, folder: Path, crowded: bool = False) -> Case:
    """crowded: on a machine that is tight."""
    rng = Random(f"fuzz {seed}")
    while True:
        try:
            found = case_of(random_graph(rng), random_machine(rng, seed % 2 == 0), folder)
        except WorkloadError:
            continue
        return case_of(found.graph, tight(rng, found.machine, found.workload), folder) if crowded else found


def roomy(case: Case) -> Case:
    """The same with room for everything."""
    inner = tuple(replace(level, capacity_bits=8 * ROOMY) for level in case.arch.levels[1:])
    return replace(
        case, arch=replace(case.arch.unbounded(), levels=(case.arch.unbounded().levels[0], *inner))
    )


SOLVERS: tuple[dict[str, Any], ...] = (
    {"schedule": "unfused"},
    {"schedule": "fused"},
    {"schedule": "best"},
    {"schedule": "pipelined"},
    {"schedule": "pipelined", "weights": "pinned"},
    {"schedule": "kapla"},
    {"schedule": "kapla", "weights": "pinned"},
    {"schedule": "residency"},
    {"schedule": "seq-flex"},
    {"schedule": "seq-overflow"},
    {"schedule": "gogeta"},
)


ANY = ("fused", "pipelined", "kapla")  # a level of which they say that it is short is so for every schedule


def claims(case: Case, objective: str, solvers: Sequence[dict[str, Any]] = SOLVERS) -> list[Claim]:
    """What solvers find that can run on the machine. Raises Violated."""
    return claimed(answers(case, objective, solvers), objective)


def claimed(said: Iterable[Answer], objective: str) -> list[Claim]:
    return [
        Claim(own["schedule"], objective, own.get("weights", "streamed"), found, own["schedule"] == "unfused")
        for own, found in said
        if isinstance(found, Solution)
    ]


def refusals(case: Case, objective: str, answered: Sequence[Answer]) -> list[Refusal]:
    """Of which levels solvers say that these are too small; that a search found nothing is no claim."""
    found = []
    for own, said in answered:
        if not isinstance(said, Infeasible) or said.unit != "bytes" or said.level == "the search":
            continue
        space = None
        if own["schedule"] not in ANY and said.level == case.arch.levels[0].name:
            wide = claims(roomy(case), objective, [own])
            space = wide[0].found.space if wide else None
            if space is None:
                continue
        found.append(Refusal(own["schedule"], own.get("weights", "streamed"), said, space))
    return found


def answers(case: Case, objective: str, solvers: Sequence[dict[str, Any]]) -> Iterator[Answer]:
    """What solvers say that can run on the machine. Raises Violated."""
    for own in solvers:
        try:
            found = solve(case.arch, case.workload, SolverOptions(objective=objective, **own))  # type: ignore[arg-type]
        except Violated:
            raise
        except ValueError as fault:
            if not isinstance(fault, WorkloadError) and "solver." not in str(fault):
                raise Violated(
                    f"solver.schedule = {own['schedule']} made a schedule that is none: {fault}"
                ) from None
            continue  # a machine, or a workload, that it does not know, with what to take instead
        yield own, found if isinstance(found, Infeasible) else found[0]


def answer(claim: Claim, case: Case) -> Schedule | None:
    """Its schedule."""
    if claim.found.schedule or any(c.mapping.non_nest_text for c in claim.found.einsums):
        return claim.found.schedule
    return sequential(case.workload, {c.name: c.mapping for c in claim.found.einsums})


def outside(claim: Claim, case: Case) -> str | None:
    """What leaves an answer out of the space that it is called the optimum of; None: nothing does."""
    own, space = answer(claim, case), claim.found.space
    if not own or not space or gap_in_space_text(0.0) not in claim.found.certificate:
        return None
    return covers(space, own, case.workload, case.arch)


# Changes: each gives another schedule, which may be none, or None.

Change = Callable[[Random, Schedule, Case], Schedule | None]


def _at(s: Schedule, i: int, segment: Segment) -> Schedule:
    return replace(s, segments=(*s.segments[:i], segment, *s.segments[i + 1 :]))


def _branch(s: Schedule, i: int, j: int, branch: Branch) -> Schedule:
    own = s.segments[i]
    return _at(s, i, replace(own, branches=(*own.branches[:j], branch, *own.branches[j + 1 :])))


def _any(rng: Random, s: Schedule) -> tuple[int, int, Branch]:
    i = rng.randrange(len(s.segments))
    j = rng.randrange(len(s.segments[i].branches))
    return i, j, s.segments[i].branches[j]


def _einsum(case: Case, name: str) -> Einsum:
    return next(e for e in case.workload.einsums if e.name == name)


def _divisor(rng: Random, n: int) -> int:
    tiles = [t for t in range(1, n + 1) if n % t == 0]
    return rng.choice(tiles) if rng.random() < 0.8 else rng.randint(1, n)


def tile(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """Another tile of a loop, shared or not."""
    i, j, branch = _any(rng, s)
    nodes, shared = (s.segments[i].nodes, True) if rng.random() < 0.3 else (branch.mapping.nodes, False)
    loops = [at for at, node in enumerate(nodes) if isinstance(node, Loop)]
    if not loops:
        return None
    at = rng.choice(loops)
    loop = nodes[at]
    assert isinstance(loop, Loop)
    sizes = {rank: n for e in case.workload.einsums for rank, n in e.sizes().items()}
    changed = (*nodes[:at], replace(loop, tile=_divisor(rng, sizes[loop.rank])), *nodes[at + 1 :])
    return (
        _at(s, i, replace(s.segments[i], nodes=changed))
        if shared
        else _branch(s, i, j, replace(branch, mapping=replace(branch.mapping, nodes=changed)))
    )


def move(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A loop or storage node elsewhere, in a nest or among shared nodes."""
    i, j, branch = _any(rng, s)
    shared = rng.random() < 0.3
    nodes = list(s.segments[i].nodes if shared else branch.mapping.nodes)
    if len(nodes) < 2:
        return None
    a = rng.randrange(len(nodes))
    b = min(max(a + rng.choice([-2, -1, 1, 2]), 0), len(nodes) - 1)
    nodes.insert(b, nodes.pop(a))
    return _at(s, i, replace(s.segments[i], nodes=tuple(nodes))) if shared else _nest(s, i, j, branch, nodes)


def _nest(s: Schedule, i: int, j: int, branch: Branch, nodes: Sequence[Loop | Store]) -> Schedule:
    return _branch(s, i, j, replace(branch, mapping=replace(branch.mapping, nodes=tuple(nodes))))


def loop(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A loop more in a nest, in time or over lanes, or one less."""
    i, j, branch = _any(rng, s)
    nodes = list(branch.mapping.nodes)
    if rng.random() < 0.3 and (loops := [at for at, node in enumerate(nodes) if isinstance(node, Loop)]):
        del nodes[rng.choice(loops)]
        return _nest(s, i, j, branch, nodes)
    rank, n = rng.choice(list(_einsum(case, branch.einsum).extents))
    over = rng.choice(["", *(name for f in case.arch.fanouts for name, _ in f.dims)])
    nodes.insert(
        rng.randrange(len(nodes) + 1) if rng.random() < 0.6 else 0, Loop(rank, _divisor(rng, n), over)
    )
    return _nest(s, i, j, branch, nodes)


def store(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A storage node more in a nest, or one less."""
    i, j, branch = _any(rng, s)
    nodes = list(branch.mapping.nodes)
    if rng.random() < 0.4 and (stores := [at for at, node in enumerate(nodes) if isinstance(node, Store)]):
        del nodes[rng.choice(stores)]
        return _nest(s, i, j, branch, nodes)
    p, level = rng.choice(_einsum(case, branch.einsum).tensors()), rng.choice(case.arch.levels)
    nodes.insert(rng.randrange(len(nodes) + 1), Store(level.name, p.tensor))
    return _nest(s, i, j, branch, nodes)


def share_store(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A shared node more (what several read is read once), or one less."""
    i = rng.randrange(len(s.segments))
    nodes, made = list(s.segments[i].nodes), {e.output.tensor for e in case.workload.einsums}
    if rng.random() < 0.4 and (stores := [at for at, node in enumerate(nodes) if isinstance(node, Store)]):
        del nodes[rng.choice(stores)]
        return _at(s, i, replace(s.segments[i], nodes=tuple(nodes)))
    names = [
        base_tensor(p.tensor, made) for b in s.segments[i].branches for p in _einsum(case, b.einsum).tensors()
    ]
    tensor, level = (
        rng.choice([t for t in names if names.count(t) > 1] or names),
        rng.choice(case.arch.levels),
    )
    nodes.insert(rng.randrange(len(nodes) + 1), Store(level.name, tensor))
    return _at(s, i, replace(s.segments[i], nodes=tuple(nodes)))


def share_loop(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A shared loop more, also over ranks that are summed up, or one less."""
    i = rng.randrange(len(s.segments))
    segment = s.segments[i]
    if rng.random() < 0.3 and (
        loops := [at for at, node in enumerate(segment.nodes) if isinstance(node, Loop)]
    ):
        at = rng.choice(loops)
        return _at(s, i, replace(segment, nodes=(*segment.nodes[:at], *segment.nodes[at + 1 :])))
    return (
        _at(s, i, found)
        if (found := _with_loop(rng, segment, case, rng.randrange(len(segment.nodes) + 1)))
        else None
    )


def spread(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A segment of which each PE of the outermost array gets a part, or one no longer."""
    i, outer = rng.randrange(len(s.segments)), case.arch.levels[0].name
    segment = s.segments[i]
    if not case.arch.fanouts or len(segment.branches) < 2:
        return None
    if any(isinstance(node, Loop) and node.over for node in segment.nodes):
        nodes = tuple(n for n in segment.nodes if not (isinstance(n, Loop) and n.over))
        return _at(s, i, replace(segment, nodes=nodes))
    far = sum(isinstance(node, Store) and node.level == outer for node in segment.nodes)
    found = _with_loop(rng, segment, case, far, rng.choice(case.arch.fanouts[0].dims)[0])
    return _at(s, i, found) if found else None


def _with_loop(rng: Random, segment: Segment, case: Case, at: int, over: str = "") -> Segment | None:
    """A segment below a further shared loop, over ranks that tensors say are one, or, now and then, over any
    of equal extents.
    """
    part = [_einsum(case, b.einsum) for b in segment.branches]
    common = [axis for axis in axes(part) if len({e.sizes()[axis[e.name]] for e in part}) == 1]
    if not common:
        return None
    axis = rng.choice(common)
    name, n = axis[part[0].name], part[0].sizes()[axis[part[0].name]]
    nodes = (*segment.nodes[:at], Loop(name, _divisor(rng, n), over), *segment.nodes[at:])
    branches = [
        replace(b, ranks=tuple(sorted({**dict(b.ranks), name: axis[b.einsum]}.items())))
        if axis[b.einsum] != name
        else b
        for b in segment.branches
    ]
    return Segment(tuple(branches), nodes)


def merge(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """Two segments in one, under shared nodes and up to two shared loops, in turn or side by side."""
    if len(s.segments) < 2:
        return None
    i = rng.randrange(len(s.segments) - 1)
    found = _joined(rng, [*_bare(s.segments[i]), *_bare(s.segments[i + 1])], s.weights, case)
    far = sum(isinstance(node, Store) and node.level == case.arch.levels[0].name for node in found.nodes)
    for _ in range(rng.choice([0, 1, 1, 2])):
        at = rng.randint(far, len(found.nodes)) if rng.random() < 0.3 else far
        found = _with_loop(rng, found, case, at) or found
    if nodes_of(case.arch) and rng.random() < 0.7:
        found = replace(found, branches=_placed(rng, found.branches, case))
    else:
        found = replace(
            found, branches=tuple(replace(branch, region=(), filled_once=()) for branch in found.branches)
        )
    return replace(s, segments=(*s.segments[:i], found, *s.segments[i + 2 :]))


def nodes_of(arch: Arch) -> bool:
    """Whether the outermost array has rows and columns right inside of main memory, which stages may
    share."""
    return bool(arch.fanouts) and arch.fanouts[0].outside == 1 and len(arch.fanouts[0].dims) == 2


def _joined(rng: Random, branches: Sequence[Branch], weights: str, case: Case) -> Segment:
    """Branches below shared nodes: at the outermost level for all that comes or goes, on the chip for what
    they hand on, now and then for what several read.
    """
    made = {e.output.tensor for e in case.workload.einsums}
    part = [_einsum(case, branch.einsum) for branch in branches]
    names = [base_tensor(p.tensor, made) for e in part for p in e.tensors()]
    elsewhere = {
        base_tensor(p.tensor, made) for e in case.workload.einsums if e not in part for p in e.inputs
    }
    handed = [e.output.tensor for e in part if names.count(e.output.tensor) > 1]
    pinned = case.workload.weights if weights == "pinned" else frozenset[str]()
    far = [
        t
        for t in dict.fromkeys(names)
        if t not in pinned and (t not in handed or t in elsewhere or rng.random() < 0.1)
    ]
    outer, level = case.arch.levels[0].name, rng.choice([case.arch.levels[1], *case.arch.levels[1:]]).name
    shared = [t for t in far if t not in handed and names.count(t) > 1 and rng.random() < 0.5]
    nodes = (*(Store(outer, t) for t in far), *(Store(level, t) for t in (*handed, *shared)))
    above = {Store(level, t) for t in handed}

    def own(branch: Branch) -> Branch:
        """Without what stands above; a reader's own copy stays, of what another one makes."""
        result = _einsum(case, branch.einsum).output.tensor
        left = [
            n
            for n in branch.mapping.nodes
            if not (isinstance(n, Store) and (n.level == outer or (n in above and n.tensor == result)))
        ]
        return replace(branch, mapping=replace(branch.mapping, nodes=tuple(left)))

    return Segment(tuple(own(branch) for branch in branches), nodes)


def _bare(segment: Segment) -> list[Branch]:
    """Branches as they would run alone: what is shared stands in each nest."""
    found = []
    for branch in segment.branches:
        names = dict(branch.ranks)
        mine = [
            replace(node, rank=names.get(node.rank, node.rank)) if isinstance(node, Loop) else node
            for node in segment.nodes
        ]
        found.append(
            replace(branch, ranks=(), mapping=replace(branch.mapping, nodes=(*mine, *branch.mapping.nodes)))
        )
    return found


def _placed(rng: Random, branches: Sequence[Branch], case: Case) -> tuple[Branch, ...]:
    """Stages side by side, each in columns or rows of its own."""
    (down, rows), (along, columns) = case.arch.fanouts[0].dims
    if columns < rows or (columns == rows and rng.random() < 0.5):
        (down, rows), (along, columns) = (along, columns), (down, rows)
    width, order = max(columns // len(branches), 1), [*range(len(branches))]
    rng.shuffle(order)
    return tuple(
        replace(branch, region=(Region(down, 0, rows), Region(along, at * width, width)))
        for at, branch in zip(order, branches, strict=True)
    )


def split(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """Einsums of a segment in segments of their own."""
    i = rng.randrange(len(s.segments))
    if len(s.segments[i].branches) < 2:
        return None
    made, outer, apart = {e.output.tensor for e in case.workload.einsums}, case.arch.levels[0].name, []
    for branch in _bare(s.segments[i]):
        e = _einsum(case, branch.einsum)
        mine = {base_tensor(p.tensor, made) for p in e.tensors()}
        nodes = [
            node
            for node in branch.mapping.nodes
            if not isinstance(node, Store) or base_tensor(node.tensor, made) in mine
        ]
        there = {node.tensor for node in nodes if isinstance(node, Store) and node.level == outer}
        lead = [Store(outer, p.tensor) for p in e.tensors() if p.tensor not in there]
        apart.append(
            Segment(
                (
                    replace(
                        branch,
                        region=(),
                        filled_once=(),
                        mapping=replace(branch.mapping, nodes=(*lead, *nodes)),
                    ),
                )
            )
        )
    return replace(s, segments=(*s.segments[:i], *apart, *s.segments[i + 1 :]))


def order(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """Segments, or einsums of one, in another order."""
    i = rng.randrange(len(s.segments))
    own = list(s.segments[i].branches)
    if len(own) > 1 and rng.random() < 0.5:
        j = rng.randrange(len(own) - 1)
        own[j], own[j + 1] = own[j + 1], own[j]
        return _at(s, i, replace(s.segments[i], branches=tuple(own)))
    if i + 1 == len(s.segments):
        return None
    return replace(s, segments=(*s.segments[:i], s.segments[i + 1], s.segments[i], *s.segments[i + 2 :]))


def hold(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """Inputs of a stage that are filled in the first granule only, or one of them less."""
    i, j, branch = _any(rng, s)
    if not branch.region:
        return None
    if branch.filled_once and rng.random() < 0.3:
        return _branch(s, i, j, replace(branch, filled_once=branch.filled_once[1:]))
    e, first = _einsum(case, branch.einsum), dict[str, Store]()
    for node in branch.mapping.nodes:
        if isinstance(node, Store) and node.tensor != e.output.tensor:
            first.setdefault(node.tensor, node)
    new = [node for node in first.values() if node not in branch.filled_once]
    return (
        _branch(s, i, j, replace(branch, filled_once=(*branch.filled_once, rng.choice(new)))) if new else None
    )


def keep(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A tensor more that stays between einsums, whole or in part, or one less."""
    if s.retained and rng.random() < 0.4:
        at = rng.randrange(len(s.retained))
        return replace(s, retained=(*s.retained[:at], *s.retained[at + 1 :]))
    made = {e.output.tensor for e in case.workload.einsums}
    tensors = {base_tensor(p.tensor, made) for e in case.workload.einsums for p in e.inputs} - {
        one.tensor for one in s.retained
    }
    if not tensors:
        return None
    share = Fraction(1) if rng.random() < 0.7 else Fraction(rng.randint(1, 3), 4)
    return replace(
        s,
        retained=tuple(
            sorted(
                (*s.retained, Retained(case.arch.levels[1].name, rng.choice(sorted(tensors)), share)),
                key=lambda k: (k.level, k.tensor),
            )
        ),
    )


def region(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A stage on other lanes, stages elsewhere, or einsums in turn instead."""
    i, j, branch = _any(rng, s)
    if len(s.segments[i].branches) < 2 or not nodes_of(case.arch):
        return None
    if not branch.region or rng.random() < 0.2:
        return _at(s, i, replace(s.segments[i], branches=_placed(rng, s.segments[i].branches, case)))
    at = rng.randrange(len(branch.region))
    one = branch.region[at]
    size = dict(case.arch.fanouts[0].dims)[one.dim]
    first = rng.randrange(size)
    other = replace(one, first=first, size=rng.randint(1, size - first))
    return _branch(s, i, j, replace(branch, region=(*branch.region[:at], other, *branch.region[at + 1 :])))


def weights(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """There before the run, with no node outside of the chip; or loaded in every one."""
    if not case.workload.weights or rng.random() < 0.7:
        return replace(s, fills_ahead=not s.fills_ahead) if rng.random() < 0.2 else None
    outer = case.arch.levels[0].name
    if s.weights == "pinned":
        return replace(s, weights="streamed")

    def without(nodes: Sequence[Loop | Store]) -> tuple[Loop | Store, ...]:
        return tuple(
            n
            for n in nodes
            if not (isinstance(n, Store) and n.level == outer and n.tensor in case.workload.weights)
        )

    segments = [
        replace(
            one,
            nodes=without(one.nodes),
            branches=tuple(
                replace(b, mapping=replace(b.mapping, nodes=without(b.mapping.nodes))) for b in one.branches
            ),
        )
        for one in s.segments
    ]
    return replace(s, weights="pinned", segments=tuple(segments))


def parts(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A tile that lanes share out and pass round."""
    i, j, branch = _any(rng, s)
    if branch.mapping.shares:
        return _branch(s, i, j, replace(branch, mapping=replace(branch.mapping, shares=())))
    if not case.arch.fanouts or rng.random() < 0.7:
        return None
    f = rng.choice(case.arch.fanouts)
    p, dims = (
        rng.choice(_einsum(case, branch.einsum).tensors()),
        tuple(name for name, _ in f.dims if rng.random() < 0.7),
    )
    if not dims or f.outside >= len(case.arch.levels):
        return None
    shares = (Rotated(case.arch.levels[f.outside].name, p.tensor, dims),)
    return _branch(s, i, j, replace(branch, mapping=replace(branch.mapping, shares=shares)))


CHANGES: tuple[Change, ...] = (
    tile,
    tile,
    tile,
    move,
    move,
    move,
    loop,
    loop,
    store,
    store,
    share_store,
    share_loop,
    share_loop,
    spread,
    merge,
    merge,
    split,
    order,
    hold,
    hold,
    keep,
    keep,
    region,
    region,
    weights,
    parts,
)


def tidied(s: Schedule, case: Case) -> Schedule:
    """Loops that do nothing left out, tiles no larger than what is left, and every rank cut down to one."""
    segments = []
    for segment in s.segments:
        branches = []
        for branch in segment.branches:
            left, names, nodes = (
                _einsum(case, branch.einsum).sizes(),
                dict(branch.ranks),
                list[Loop | Store](),
            )
            for node in segment.nodes:
                if isinstance(node, Loop) and names.get(node.rank, node.rank) in left:
                    left[names.get(node.rank, node.rank)] = min(
                        node.tile, left[names.get(node.rank, node.rank)]
                    )
            for node in branch.mapping.nodes:
                if isinstance(node, Store):
                    nodes += [node] * (node not in nodes)
                elif left.get(node.rank, 0) > node.tile:
                    nodes.append(node)
                    left[node.rank] = node.tile
            nodes += [Loop(rank, 1) for rank, n in left.items() if n > 1]
            held = tuple(one for one in branch.filled_once if one in nodes)
            branches.append(
                replace(branch, mapping=replace(branch.mapping, nodes=tuple(nodes)), filled_once=held)
            )
        segments.append(replace(segment, branches=tuple(branches)))
    return replace(s, segments=tuple(segments))


def changed(rng: Random, s: Schedule, case: Case) -> Schedule | None:
    """A schedule that differs in one to three things."""
    found: Schedule | None = s
    for _ in range(rng.choice([1, 1, 2, 3])):
        found = (rng.choice(CHANGES)(rng, found, case) or found) if found else None
    return None if found is None or found == s else tidied(found, case)


def from_scratch(rng: Random, case: Case) -> Schedule:
    """Any of the notation: segments cut at random, under shared loops or side by side, tensors kept in part,
    weights pinned.
    """
    arch, nodes = case.arch, nodes_of(case.arch)
    given = rng.choice(["streamed", "streamed", "pinned"])
    segments = tuple(
        random_segment(
            rng, arch, case.workload, part, nodes and len(part) > 1 and rng.random() < 0.7, given == "pinned"
        )
        for part in cut(rng, case.workload)
    )
    keeps = random_keeps(rng, arch, case.workload) if rng.random() < 0.3 else ()
    return Schedule(segments, tuple(sorted(keeps, key=lambda one: (one.level, one.tensor))), given)


def priced(case: Case, s: Schedule) -> Solution | None:
    """None: it is no legal schedule, or does not fit. Raises Violated."""
    try:
        found = evaluate(case.arch, case.workload, s, "energy", reuse=True)
    except Violated:
        raise
    except ValueError:
        return None
    return found if isinstance(found, Solution) else None


def stated(claim: Claim, s: Schedule, case: Case) -> str | None:
    """What leaves a schedule out of the space that an answer names; None: nothing does."""
    space = claim.found.space
    return covers(space, s, case.workload, case.arch) if space else "nothing is searched"


def held(claim: Claim, s: Schedule, cost: Solution, case: Case, tally: Tally, leaves_out: Covers) -> bool:
    """A schedule against what is claimed; whether the claim covers it."""
    if s.weights != claim.weights:
        return False
    value, where = objective_value(claim.objective, cost.energy_pj, cost.latency_cycles), ""
    tally.drawn += 1
    out = leaves_out(claim, s, case)
    ratios = []
    if out is None:
        tally.covered += 1
        ratios.append(("optimality gap", claim.found.optimality_gap))
    else:
        tally.excluded[out] = tally.excluded.get(out, 0) + 1
    if not claim.unfused or s.is_unfused():
        ratios.append(("gap to the lower bound", claim.found.gap_to_bound))
    for where, gap in ratios:
        ratio = value * (1 + gap) / claim.value
        if where == "optimality gap":
            tally.least = min(tally.least, ratio)
        else:
            tally.bound = min(tally.bound, ratio)
        if ratio < 1 - CLOSE:
            tally.failures.append(
                f"{claim.name}, {claim.objective}: {claim.value:.6g} with {where} {gap:.4g} claims at least "
                f"{claim.value / (1 + gap):.6g}; this schedule costs {value:.6g} ({100 * (1 - ratio):.3g} % "
                f"less)\n{case.graph}---\n{case.machine}---\n{s}\n"
            )
    return out is None


def fitted(refusal: Refusal, s: Schedule, case: Case, tally: Tally) -> None:
    """A schedule that fits against an answer that nothing does."""
    if s.weights != refusal.weights:
        return
    tally.fitting += 1
    if refusal.space and covers(refusal.space, s, case.workload, case.arch):
        return
    tally.failures.append(
        f"{refusal.name}: {refusal.found}; this schedule fits\n{case.graph}---\n{case.machine}---\n{s}\n"
    )


@dataclass(slots=True)
class Pool:
    """Schedules that may be changed again: the cheapest of all, and of those that each claim covers. costs:
    by whose they are ("": all).
    """

    costs: dict[str, list[tuple[float, Schedule]]] = field(default_factory=dict)

    def add(self, value: float, s: Schedule, of: Sequence[str]) -> None:
        for name in ("", *of):
            own = self.costs.setdefault(name, [])
            if not own or value <= NEAR * own[0][0]:
                own.append((value, s))
                own.sort(key=lambda one: one[0])
                del own[POOL:]

    def drawn(self, rng: Random) -> Schedule | None:
        """One of some claim's, of cheap ones more often."""
        if not self.costs:
            return None
        own = self.costs[rng.choice(list(self.costs))]
        return own[min(int(rng.expovariate(4 / len(own))), len(own) - 1)][1]


def fuzz(
    case: Case,
    seed: int,
    many: int,
    objective: str,
    leaves_out: Covers,
    tallies: dict[str, Tally],
    seeds: Sequence[Schedule] = (),
    solvers: Sequence[dict[str, Any]] = SOLVERS,
) -> int:
    """Holds that many legal schedules against the claims of solvers; how many were drawn. seeds: to begin
    with, beside the answers.
    """
    rng, pool, seen, drawn = Random(f"drawn {seed}"), Pool(), set[str](), 0
    try:
        said = list(answers(case, objective, solvers))
        own, none = claimed(said, objective), refusals(case, objective, said)
        near = claims(roomy(case), objective, solvers) if none else []
    except Violated as fault:
        tallies.setdefault("solvers", Tally()).failures.append(f"{fault}\n{case.graph}---\n{case.machine}")
        return 0
    for claim in own:
        if feature := outside(claim, case):
            tallies.setdefault(claim.name, Tally()).failures.append(
                f"{claim.name}, {objective}: called the optimum of a space that has no such schedule "
                f"({feature})\n"
                f"{case.graph}---\n{case.machine}---\n{answer(claim, case)}\n"
            )
    for one in (*own, *none):
        tally = tallies.setdefault(one.name, Tally())
        tally.asked, tally.refused = tally.asked + 1, tally.refused + isinstance(one, Refusal)
    begun = [s for s in (*seeds, *(answer(claim, case) for claim in (*own, *near))) if s]
    for number in range(MOST_TRIED * many):
        if drawn == many or (not drawn and number > HOPELESS * many):
            break
        fresh = None if rng.random() < SCRATCH else pool.drawn(rng) or (rng.choice(begun) if begun else None)
        s = (
            begun[number]
            if number < len(begun)
            else changed(rng, fresh, case)
            if fresh
            else from_scratch(rng, case)
        )
        if s is None or str(s) in seen:
            continue
        seen.add(str(s))
        try:
            cost = priced(case, s)
        except Violated as fault:
            tallies.setdefault("evaluator", Tally()).failures.append(
                f"{fault}\n{case.graph}---\n{case.machine}"
            )
            continue
        if cost:
            drawn += 1
            by = [
                claim.name
                for claim in own
                if held(claim, s, cost, case, tallies.setdefault(claim.name, Tally()), leaves_out)
            ]
            for refusal in none:
                fitted(refusal, s, case, tallies[refusal.name])
            pool.add(objective_value(objective, cost.energy_pj, cost.latency_cycles), s, by)
    return drawn


def merged(parts: Iterable[dict[str, Tally]]) -> dict[str, Tally]:
    """Tallies of many cases, by solver."""
    found: dict[str, Tally] = {}
    for name, own in (pair for part in parts for pair in part.items()):
        all_ = found.setdefault(name, Tally())
        all_.drawn, all_.covered = all_.drawn + own.drawn, all_.covered + own.covered
        all_.least, all_.bound = min(all_.least, own.least), min(all_.bound, own.bound)
        all_.failures += own.failures
        all_.asked, all_.refused = all_.asked + own.asked, all_.refused + own.refused
        all_.fitting += own.fitting
        for what, n in own.excluded.items():
            all_.excluded[what] = all_.excluded.get(what, 0) + n
    return found


DATA = Path(__file__).parent / "data" / "reported"
REPORTED: dict[
    str, tuple[str, str, dict[str, Any]]
] = {  # schedules that cost less than a solver once allowed: workload, machine, the solver
    "tiny_held": ("tiny", "m22s", {"schedule": "pipelined"}),
    "chain3_held": ("chain3", "m33", {"schedule": "pipelined"}),
    "chain4_held": ("chain4", "kapla_multi_4x4", {"schedule": "kapla"}),
    "graphsage_shared_reads": ("graphsage", "edge_array", {"schedule": "fused"}),
}


def reported(name: str, folder: Path) -> tuple[Case, Schedule, list[dict[str, Any]]]:
    """One of them, where it was found, and the solver that it beat."""
    graph, spec, solver = REPORTED[name]
    text = (DATA / f"{spec}.yaml" if (DATA / f"{spec}.yaml").exists() else machine.find(spec)).read_text()
    (folder / "machine.yaml").write_text(
        text := text.replace("gbuf, capacity: 128 KiB", "gbuf, capacity: 1 MiB")
    )  # edge_array
    path = DATA / f"{graph}.yaml"
    workload, schedule = load(DATA / f"{name}.sch", catalog.load(str(path) if path.exists() else graph))
    graph_text = path.read_text() if path.exists() else f"{graph}\n"
    return (
        Case(graph_text, text, workload, machine.arch(machine.load(str(folder / "machine.yaml")))),
        schedule,
        [solver],
    )
