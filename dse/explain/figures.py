"""What pictures show, as plain values: rooflines, nests with occupancy and traffic, ski slopes, on-chip
retention, effects of parameters, progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.explain import units
from dse.explain.values import costed_einsums, held_bytes, main_memory_bytes, moved_bytes, phase_text
from dse.layout.address import address
from dse.layout.text import parse, show
from dse.mapping.nest import Infeasible, Loop, Store, bits_at
from dse.sim.counts.counts import in_elems, tile_words
from dse.sim.counts.terms import resting_position
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import EinsumCost, ProgressFn, Solution, no_progress
from dse.sim.levels.transfer import dim_names
from dse.sim.schedule.graph import on_chip
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.study import pareto
from hw.arch import Arch, Compute, Level
from hw.component import closest_name
from workloads.einsum import Einsum, Projection
from workloads.graph import Workload, counts, unique

if TYPE_CHECKING:  # importing it would import SciPy
    from dse.solve.gogeta.accesses import Access
    from dse.solve.gogeta.optimum import RetainedSpan
    from dse.solve.gogeta.traffic import TrafficReport

Values = NDArray[np.float64]

Ints = NDArray[np.int64]

MAX_EFFECT_VALUES, EFFECT_BINS = 16, 8  # values of a parameter that are shown, ranges of more numbers
MAX_PROGRESS_POINTS = 60  # points of a progress curve
# ski slope: capacities start at 2^4 B, or 18 doublings below the largest einsum's tensors if that is more
MIN_LOG2_BYTES, MAX_DOUBLINGS = 4, 18
MAX_SIDE = 24  # elements per side in a picture of a layout


@dataclass(frozen=True, slots=True)
class Dot:
    """An einsum on a roofline."""

    name: str
    intensity: float  # MACs per byte of the outermost level
    rate: float  # GMAC/s
    share: float  # share of the workload's latency
    bottleneck: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Einsums on the roofline of a machine, and the two limits of the machine."""

    peak: float  # GMAC/s of all MAC units
    gb_s: float  # bytes per ns of the outermost level
    level: str  # name of the outermost level
    dots: tuple[Dot, ...]
    components: tuple[str, ...]  # of the machine, in order
    not_drawn: str  # einsums without MACs: how many, their share of the latency; "": there are none


@dataclass(frozen=True, slots=True)
class Tile:
    """What one instance of a level stores of a tensor."""

    tensor: str
    # (rank, iterations) of each rank that indexes the tensor, in the tile that is held; (): it is no such box
    ranks: tuple[tuple[str, int], ...]
    held_bytes: float  # of all buffers
    buffers: int  # tiles that are held: 2 where one is filled while the other is read
    moved_bytes: float  # bytes that all instances read and write per run


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a mapping from main memory to the MAC units: one of tiles, loops and dims is not empty."""

    name: str  # of the level or the array
    tiles: tuple[Tile, ...] = ()
    loops: tuple[tuple[str, int], ...] = ()  # temporal: (rank, trips), outermost first
    dims: tuple[tuple[str, int, int], ...] = ()  # of the array: (dimension, PEs that work, all PEs)
    unrolled: tuple[tuple[str, int, str], ...] = ()  # spatial loops of the array: (rank, trips, dimension)


def diagram(arch: Arch, e: Einsum, c: EinsumCost) -> list[Stage]:
    """Returns the stages of a mapping. Nodes of a level between two loops, temporal loops, and spatial loops
    of an array are one stage; levels between two loops stand in their order, outermost first. Nodes of
    retained tensors that neither hold nor move anything are left out.
    """
    array_of = {dim: f for f in arch.fanouts for dim, _ in f.dims}
    sizes, lines = e.sizes(), nest(arch, e, c)
    buffers_of = {(level, tensor): buffers for level, tensor, _, buffers, _ in held_bytes(arch, e, c)}
    retained = {tensor for _, tensor, _ in c.retained}
    stages: list[Stage] = []
    for at, (node, line) in enumerate(zip(c.mapping.nodes, lines, strict=False)):
        if not isinstance(node, Loop):
            if node.tensor in retained and not line.held_bytes and not line.moved_bytes:
                continue
            ranks = _held_ranks(arch, e, c, at, sizes)
            buffers = buffers_of.get((node.level, node.tensor), 1)
            tile = Tile(node.tensor, ranks, line.held_bytes, buffers, line.moved_bytes)
            own = Stage(node.level, tiles=(tile,))
        else:
            trips, sizes[node.rank] = ceil(sizes[node.rank] / node.tile), node.tile
            own = Stage("", loops=((node.rank, trips),))
            if node.over:
                array = array_of[node.over]
                dims = tuple((dim, trips if dim == node.over else 1, size) for dim, size in array.dims)
                own = Stage(array.name, dims=dims, unrolled=((node.rank, trips, node.over),))
        last = stages[-1] if stages else Stage("none")
        same_kind = (bool(last.tiles), bool(last.loops)) == (bool(own.tiles), bool(own.loops))
        if stages and last.name == own.name and same_kind:
            used = zip(last.dims, own.dims, strict=True)
            own = Stage(
                own.name,
                last.tiles + own.tiles,
                last.loops + own.loops,
                tuple((dim, a * b, size) for (dim, a, size), (_, b, _) in used),
                last.unrolled + own.unrolled,
            )
            stages.pop()
        stages.append(own)
    order = [level.name for level in arch.levels]
    in_order = list[Stage]()
    for is_level, neighbours in groupby(stages, key=lambda one: bool(one.tiles)):
        group = list(neighbours)
        if is_level:
            tiles = {name: tuple(t for one in group if one.name == name for t in one.tiles) for name in order}
            group = [Stage(name, tiles=own_tiles) for name, own_tiles in tiles.items() if own_tiles]
        in_order += group
    return in_order


def _held_ranks(
    arch: Arch, e: Einsum, c: EinsumCost, at: int, sizes: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Returns (rank, iterations) of the tile that the node at this position holds, where it sinks below loops
    (`terms.resting_position`), and at the outermost level, or where it is retained, of the whole tensor; ()
    where what is held is not that box: parts that rotate, copies, padding.

    sizes: iterations of each rank below the loops above the node
    """
    node = c.mapping.nodes[at]
    assert isinstance(node, Store)
    p = next(p for p in e.tensors() if p.tensor == node.tensor)
    ranks = list(dict.fromkeys(r for d in p.dims for r, _ in d.terms))
    is_whole = (
        node.level,
        node.tensor,
        in_elems(p, p.stored_bits(arch.word_bits), arch.word_bits),
    ) in c.retained
    if is_whole or node.level == arch.levels[0].name:
        return tuple((rank, e.sizes()[rank]) for rank in ranks)
    above = [n for n in c.mapping.nodes[:at] if isinstance(n, Store) and n.tensor == node.tensor]
    tile = dict(sizes)
    if above:
        end = resting_position(p, e, c.mapping, at, above[-1].level, arch.layout_levels())
        tile |= {n.rank: n.tile for n in c.mapping.nodes[at:end] if isinstance(n, Loop)}
    held = [elems for level, tensor, elems in c.footprint if (level, tensor) == (node.level, node.tensor)]
    is_box = held == [tile_words(p, tile, arch.word_bits)]
    return tuple((rank, tile[rank]) for rank in ranks) if is_box else ()


def label(c: EinsumCost) -> str:
    """Returns how pictures name the einsums of a cost: `conv1 x 3` for three equal ones."""
    return f"{c.name} x {c.count}" if c.count > 1 else c.name


def roofline(arch: Arch, workload: Workload, solution: Solution, einsum: str | None = None) -> Roofline:
    """Returns the roofline of a solution: the limits of the MAC units and of the outermost level, and a dot
    per einsum that multiplies. Others have no MACs, as in tables: `not_drawn` says how many and how long.
    einsum: of this one alone. Raises ValueError where there is no such einsum, or it has no MACs.
    """
    outer, dots, others = arch.levels[0], list[Dot](), list[EinsumCost]()
    only = one_einsum(workload, solution, einsum)[1] if einsum else None
    for c, e in costed_einsums(workload, solution):
        if only and c is not only:
            continue
        ops, moved = bounds.needs(e, arch.word_bits).computed, moved_bytes(arch, e, c)[outer.name]
        if ops and moved and e.kind == "mac":
            ns = c.latency_cycles / arch.clock_ghz
            dots.append(
                Dot(
                    label(c),
                    ops / moved,
                    ops / ns,
                    c.count * c.latency_cycles / (solution.latency_cycles or 1),
                    c.bottleneck,
                )
            )
        else:
            others.append(c)
    if only and not dots:
        raise ValueError(f"--einsum {einsum}: has no MACs, so no place on a roofline; its cost: dse map")
    return Roofline(
        arch.peak_gmacs(),
        outer.bandwidth * outer.width_bits / 8 * arch.clock_ghz,
        outer.name,
        tuple(dots),
        tuple(arch.components()),
        _not_drawn(others, solution.latency_cycles),
    )


def _not_drawn(others: Sequence[EinsumCost], latency_cycles: float) -> str:
    """Returns how many einsums a roofline leaves out, their share of the latency and their bottlenecks."""
    if not others:
        return ""
    count = sum(c.count for c in others)
    cycles = sum(c.count * c.latency_cycles for c in others)
    share = units.quantity("latency_share", cycles / (latency_cycles or 1))
    by = Counter[str]()
    for c in others:
        by[c.bottleneck] += c.count
    found = ", ".join(f"{component} of {n}" for component, n in by.most_common())
    without = f"{units.counted(count, 'einsum')} without MACs"
    return f"not drawn: {without}, {share} of the latency; bottleneck {found}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a nest. The last four fields are for storage nodes."""

    text: str
    depth: int
    level: str = ""
    held_bytes: float = 0.0  # bytes that one instance stores, of all buffers
    share: float | None = None  # held_bytes as a share of the level's capacity
    moved_bytes: float = 0.0  # bytes that all instances read and write per run


def nest(arch: Arch, e: Einsum, c: EinsumCost) -> list[Line]:
    """Returns a line per loop, per storage node, and for the compute. Where a tensor has several nodes at a
    level, the first one has the bytes of all of them, the others 0 bytes; each has the share of all together.
    """
    levels, sizes, depth, shown_nodes = {level.name: level for level in arch.levels}, e.sizes(), 0, set()
    lines, held = list[Line](), held_bytes(arch, e, c)
    for node in c.mapping.nodes:
        if isinstance(node, Loop):
            trips, sizes[node.rank] = ceil(sizes[node.rank] / node.tile), node.tile
            loop = f"{node.rank} in [0:{trips}) tile {node.tile}"
            text = f"parfor {loop} over {node.over}" if node.over else f"for {loop}"
            lines.append(Line(text, depth))
            depth += 1
            continue
        is_first, node_key = (node.level, node.tensor) not in shown_nodes, (node.level, node.tensor)
        shown_nodes.add(node_key)
        bits = bits_at(levels[node.level], node.tensor, e, arch)
        held_bits = 8 * sum(own for level, tensor, _, _, own in held if (level, tensor) == node_key)
        moved_bits = sum(row.elems for row in c.counts if (row.level, row.tensor) == node_key) * bits
        capacity_bits = levels[node.level].capacity_bits
        lines.append(
            Line(
                f"store {node.level} {node.tensor}",
                depth,
                node.level,
                is_first * held_bits / 8,
                held_bits / capacity_bits if capacity_bits else None,
                is_first * moved_bits / 8,
            )
        )
    return [*lines, Line("mac" if e.kind == "mac" else e.kind, depth)]


@dataclass(frozen=True, slots=True)
class Slope:
    """A ski slope: minimum traffic of the outermost level over the capacity of one buffer."""

    outer: str  # name of the outermost level
    # (capacity in bytes, minimum traffic in bytes); None: no mapping fits
    points: tuple[tuple[float, float | None], ...]
    certificate: str  # what is proven of all points
    compulsory: float  # bytes that move at any capacity: each tensor once
    # the machine: (on-chip bytes of all instances, traffic of its own mappings in bytes)
    machine_point: tuple[float, float] | None


def ski_slope(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    found: Solution | Infeasible,
    progress: ProgressFn = no_progress,
) -> Slope:
    """Returns the minimum outermost traffic over the capacity of an on-chip buffer, and the traffic of
    `found` on the machine `arch` itself.

    The minima are those of a machine with this one buffer, on which only outermost traffic costs energy
    (`_one_buffer`). Rules for mappings at dimensions and other memories are left out, and the claim names
    them. Source: the ski-slope diagrams of Orojenesis (Huang et al., ISCA 2024).
    """
    einsum_tensor_bytes = [[stored_bytes(p, arch) for p in e.tensors()] for e in workload.einsums]
    log2_largest = ceil(log2(max(map(sum, einsum_tensor_bytes))))
    capacities = [2.0**i for i in range(max(MIN_LOG2_BYTES, log2_largest - MAX_DOUBLINGS), log2_largest + 2)]
    points, claims = [], []
    outer_name = arch.levels[0].name
    left_out = [rule for rule in (*arch.mapping, *options.mapping) if rule.at.upper() != outer_name]
    kept = tuple(rule for rule in options.mapping if rule.at.upper() == outer_name)
    options = replace(options, objective="energy", mapping=kept)
    for number, capacity in enumerate(capacities):
        progress(number, [1.0] * len(capacities), f"a buffer of {capacity:.0f} B")
        answer = solve.cached(_one_buffer(arch, capacity), workload, options)
        points.append((capacity, answer[0].energy_pj if isinstance(answer, list) else None))
        claims += [answer[0].certificate.partition(";")[0]] if isinstance(answer, list) else []
    occurrences = [*zip(workload.einsums, counts(workload), strict=True)]
    compulsory = sum(
        n * bounds.words(p, e, arch.word_bits) * (p.bits or arch.word_bits) / 8
        for e, n in occurrences
        for p in e.tensors()
    )
    on_chip_bytes = sum(
        (level.capacity_bits or 0) / 8 * arch.instances(v) for v, level in enumerate(arch.levels) if v
    )
    own_point = (
        None
        if isinstance(found, Infeasible)
        else (on_chip_bytes, main_memory_bytes(arch, costed_einsums(workload, found)))
    )
    if left_out:
        places = dict.fromkeys(rule.at.lower() or "utilization" for rule in left_out)
        claims.append(f"without rules of mappings: {', '.join(places)}")
    return Slope(outer_name, tuple(points), "; ".join(dict.fromkeys(claims)), compulsory, own_point)


def stored_bytes(p: Projection, arch: Arch) -> float:
    """Returns the bytes of a whole tensor in its format (CSR: values, column indices and row pointers)."""
    return p.stored_bits(arch.word_bits) / 8


def _one_buffer(arch: Arch, capacity: float) -> Arch:
    """Returns a machine with one MAC unit inside of one buffer that no tensor may bypass. A byte of the
    outermost level costs 1 pJ, everything else costs nothing.
    """
    outer = replace(
        arch.levels[0],
        access=None,
        leak_mw=0.0,
        read_pj=arch.levels[0].width_bits / 8,
        write_pj=arch.levels[0].width_bits / 8,
    )
    rules = tuple(rule for rule in arch.mapping if rule.at.upper() == outer.name)
    buffer = Level("BUFFER", round(8 * capacity), arch.word_bits, 0.0, 0.0, bypass=False)
    return replace(
        arch, levels=(outer, buffer), fanouts=(), compute=Compute(0.0, 0.0), units=(), mapping=rules
    )


class RetentionBar(NamedTuple):
    """A tensor, or a part of it, while it is retained."""

    tensor: str
    start: float  # in the unit of Residency.times
    end: float
    retained_bytes: float
    tensor_bytes: float


class LevelUse(NamedTuple):
    """What is retained in a level."""

    level: str
    used_bytes: tuple[float, ...]  # in each step
    capacity_bytes: float | None
    which: str = "one"  # instance: one, or all together


@dataclass(slots=True)
class _Stay:
    """Words of a tensor that stay from one step to another."""

    start: int
    end: int
    words: float
    size: int  # words of the whole tensor


@dataclass(frozen=True, slots=True)
class Residency:
    """The tensors that are retained on chip, over time."""

    title: str
    steps: tuple[str, ...]  # names of the steps
    times: tuple[float, ...]  # end of each step
    time_unit: str  # of `times`; "": they only count steps
    bars: tuple[RetentionBar, ...]
    used: tuple[LevelUse, ...]
    components: tuple[str, ...]  # of the machine, in order


def residency(arch: Arch, workload: Workload, report: TrafficReport) -> Residency:
    """Returns the optimal retention between operations. A step is one phase; as published, one access.

    A bar stands from the step that makes or first reads its tensor to the one that reads it, and in both, as
    what a phase finds and what it leaves takes space while it runs; as published up to the access that reads
    it. Below are the words that `gogeta/retention.py` counts.

    The optimum of a loop is found on a few of its periods (iterations), of which the middle ones stand for
    all but the first and last (gogeta/optimum.py): one of these is shown. What it finds on chip begins at
    its left edge, what it leaves to the next one ends at its right edge.
    """
    from dse.solve.gogeta.operations import graph
    from dse.solve.gogeta.optimum import EDGE_PERIODS
    from dse.solve.gogeta.traffic import CountingRule

    word_bytes, few = arch.word_bits / 8, 2 * EDGE_PERIODS + 2
    loops = max(workload.repeats, default=1) if workload.loop_state else 1
    listed = CountingRule(report.published).to_access_list(
        graph(workload, min(loops, few)), report.order, arch.word_bits
    )
    spans = [s for s in report.optimal.spans if s.words]
    first_step, end_step = 0, len(listed.accesses)
    if loops > few:  # one middle period, with what it leaves to the next one
        per = listed.accesses_per_period
        first_step, end_step = EDGE_PERIODS * per, (EDGE_PERIODS + 1) * per
        spans += [
            replace(s, tensor=_in_next_period(s.tensor), first=s.first + per, last=s.last + per)
            for s in spans
        ]
    names = _step_names(report, listed.accesses)[first_step:end_step]
    # a phase has what it finds and what it leaves while it runs; an access of the published list ends what it
    # reads
    through = 0 if report.published else 1
    stays = dict[str, list[_Stay]]()
    for s in sorted(spans, key=lambda s: (s.first, s.last)):
        start, end = max(s.first, first_step), min(s.last + through, end_step)
        before = stays.setdefault(s.tensor, [])
        if before and before[-1].end >= start:  # of a phase that two stays have in common the larger is shown
            if before[-1].words == s.words:
                before[-1].end = end
                continue
            if before[-1].words > s.words:
                start = before[-1].end
            else:
                before[-1].end = start
        before.append(_Stay(start, end, s.words, s.size))
    bars = [
        RetentionBar(
            tensor.partition("@")[0],
            stay.start - first_step,
            stay.end - first_step,
            stay.words * word_bytes,
            stay.size * word_bytes,
        )
        for tensor, of_tensor in stays.items()
        for stay in of_tensor
        if stay.start < stay.end
    ]
    used_bytes = tuple(
        (
            sum(s.words for s in spans if s.first <= i < s.last)
            if report.published
            else _used_words(listed.accesses[i], [s for s in spans if s.first <= i <= s.last], i)
        )
        * word_bytes
        for i in range(first_step, end_step)
    )
    rows = tuple(sorted(bars, key=lambda bar: (bar.start, bar.end)))
    return Residency(
        f"{workload.name} on {arch.name}: retained in {arch.levels[1].name} between operations, "
        f"lowest traffic{', one iteration' * (loops > few)}",
        names,
        tuple(float(i + 1) for i in range(end_step - first_step)),
        "",
        rows,
        (LevelUse(arch.levels[1].name, used_bytes, report.capacity_words * word_bytes, "all"),),
        tuple(arch.components()),
    )


def _used_words(a: Access, spans: Sequence[RetainedSpan], phase: int) -> float:
    """Returns the most words that a phase takes on chip, as it begins or as it ends: what it needs whole,
    what stays through it, what it finds or leaves of tensors in step, and of each other tensor the more of
    both. spans: those that touch the phase.
    """
    before = {s.tensor: s.words for s in spans if s.last == phase and s.tensor not in a.whole_tensors}
    after = {s.tensor: s.words for s in spans if s.first == phase and s.tensor not in a.whole_tensors}
    begin = end = a.resident_words + sum(s.words for s in spans if s.first < phase < s.last)
    for t in before.keys() | after.keys():
        found, left = before.get(t, 0.0), after.get(t, 0.0)
        begin += found if t in a.in_step else max(found, left)
        end += left if t in a.in_step else max(found, left)
    return max(begin, end)


def _in_next_period(tensor: str) -> str:
    """Returns the name of a tensor of a loop one period later; one from outside of the loop keeps its own."""
    name, _, period = tensor.partition("@")
    return f"{name}@{int(period) + 1}" if period else name


def _step_names(report: TrafficReport, accesses: Sequence[Access]) -> tuple[str, ...]:
    """Returns the operations that run in each access; as published an access is of one tensor, or of an
    update, and bears its tensors.
    """
    if not report.published:
        phases = [phase_text(report, phase) for phase in report.order]
        return tuple(phases[i % len(phases)] for i in range(len(accesses)))
    return tuple(
        " ".join(t.partition("@")[0] for t in (*a.read, *(f"→ {t}" for t in a.written))) for a in accesses
    )


def schedule_residency(arch: Arch, workload: Workload, solution: Solution) -> Residency:
    """Returns what a schedule keeps on chip: tensors that never leave the chip, and retained shares. A step
    is a segment.
    """
    assert solution.schedule is not None
    by_name = {e.name: e for e in workload.einsums}
    sizes = {p.tensor: stored_bytes(p, arch) for e in workload.einsums for p in e.tensors()}
    ends = list(accumulate(row.latency_cycles for row in solution.segments))
    starts = [0.0, *ends[:-1]]
    tensors_by_segment = [
        {p.tensor for name in row.einsums for p in by_name[name].tensors()} for row in solution.segments
    ]
    bars = []
    for retained in on_chip(solution):
        using_segments = [i for i, names in enumerate(tensors_by_segment) if retained.tensor in names]
        share = share_of(retained.share)
        bars.append(
            RetentionBar(
                f"{retained.tensor} at {retained.level}",
                starts[using_segments[0]],
                ends[using_segments[-1]],
                share * sizes[retained.tensor],
                sizes[retained.tensor],
            )
        )
    capacity = {level.name: level.capacity_bits for level in arch.levels}
    occupancy = [
        LevelUse(name, tuple(dict(row.peak_bits).get(name, 0) / 8 for row in solution.segments), bits / 8)
        for name, bits in capacity.items()
        if bits
    ]
    steps = tuple((" | " if row.pipeline_tiles else " → ").join(row.einsums) for row in solution.segments)
    return Residency(
        f"{workload.name} on {arch.name}: the schedule's segments, and what is retained on chip",
        steps,
        tuple(ends),
        "cycles",
        tuple(sorted(bars, key=lambda bar: bar.start)),
        tuple(occupancy),
        tuple(arch.components()),
    )


def share_of(text: str) -> float:
    """Returns the share in "all" or "1/2", the first share in "1/2, 1/4 after x"."""
    first = text.split(",")[0]
    numerator, _, denominator = first.partition("/")
    return 1.0 if first == "all" else int(numerator) / int(denominator or 1)


@dataclass(frozen=True, slots=True)
class TensorAddresses:
    """Addresses of some of a tensor's elements: the last two dimensions, the others at 0."""

    title: str
    rows: str  # name and range of the last but one dimension
    columns: str  # name and range of the last dimension
    addresses: tuple[tuple[int, ...], ...]
    line_elems: int  # elements of a line of memory, which move together


def layout(arch: Arch, workload: Workload, tensor: str, text: str) -> TensorAddresses:
    """Returns the addresses of a tensor's elements in the outermost level. text: the layout. Raises
    ValueError if no einsum has the tensor, or the text is no layout of it.
    """
    projection = next((p for e in workload.einsums for p in e.tensors() if p.tensor == tensor), None)
    if projection is None:
        raise ValueError(
            f"layout of {tensor}: no einsum of {workload.name} has such a tensor; its tensors are "
            f"{', '.join(dict.fromkeys(p.tensor for e in workload.einsums for p in e.tensors()))}"
        )
    names, shape = dim_names(projection), tuple(d.size for d in projection.dims)
    tensor_layout, outer = parse(text, names, shape), arch.levels[0]
    rows, columns = (shape[-2] if len(shape) > 1 else 1), shape[-1]
    leading_indices = (0,) * max(len(shape) - 2, 0)
    grid = tuple(
        tuple(
            address(tensor_layout, (*leading_indices, *((y,) if len(shape) > 1 else ()), x))
            for x in range(min(columns, MAX_SIDE))
        )
        for y in range(min(rows, MAX_SIDE))
    )
    line_elems = (outer.access.line_bits if outer.access else outer.width_bits) // (
        projection.bits or arch.word_bits
    )
    fixed_dims = "".join(f", {name} = 0" for name in names[:-2])
    dim_texts = [
        f"{name}, the first {MAX_SIDE} of {size}" if size > MAX_SIDE else name
        for name, size in zip(names, shape, strict=True)
    ]
    return TensorAddresses(
        f"{tensor} as {show(tensor_layout)}{fixed_dims}: address of each element",
        dim_texts[-2] if len(shape) > 1 else "",
        dim_texts[-1],
        grid,
        max(line_elems, 1),
    )


@dataclass(frozen=True, slots=True)
class Effect:
    """Main effect of one value of a parameter on an objective, all else equal."""

    parameter: str
    value: Any
    factor: float  # relative to the geometric mean over the parameter's values
    machines: int  # machines with this value


def effects(columns: Mapping[str, Sequence[Any]], values: Values) -> tuple[list[Effect], float]:
    """Returns main effects by least squares on logarithms, and the share of the variance that they explain.
    columns: parameter -> value per machine; numbers are put together where they are many (`binned`).
    """
    is_valid = np.isfinite(values) & (values > 0)
    log_values = np.log(np.where(is_valid, values, 1.0))[is_valid]
    # per parameter that varies: name, its values, and which of them each machine has; first the constant
    places = [("", [None], np.zeros(len(log_values), dtype=np.int64))]
    for name, column in columns.items():
        selected = [v for v, valid in zip(column, is_valid, strict=True) if valid]
        parameter_values, own = binned(name, selected)
        if len(parameter_values) > 1:
            places.append((name, parameter_values, own))
    if len(places) == 1 or len(log_values) < 2:
        return [], 0.0
    # normal equations of 0/1 columns, one per value: products of columns are counts of machines
    gram = np.block(
        [
            [
                np.bincount(own * len(others) + other, minlength=len(values_) * len(others)).reshape(
                    len(values_), len(others)
                )
                for _, others, other in places
            ]
            for _, values_, own in places
        ]
    ).astype(float)
    sums = [np.bincount(own, log_values, len(values_)) for _, values_, own in places]
    coefficients = np.linalg.lstsq(gram, np.concatenate(sums), rcond=None)[0]
    found, start, fitted = [], 0, np.zeros(len(log_values))
    for name, parameter_values, own in places:
        selected = coefficients[start : start + len(parameter_values)]
        fitted += selected[own]
        start += len(parameter_values)
        counts_of = np.bincount(own, minlength=len(parameter_values))
        if name:
            found += [
                Effect(name, parameter_value, float(np.exp(one - selected.mean())), int(n))
                for parameter_value, one, n in zip(parameter_values, selected, counts_of, strict=True)
            ]
    spread = float(((log_values - log_values.mean()) ** 2).sum())
    residual = float(((log_values - fitted) ** 2).sum())
    return found, 1.0 - residual / spread if spread > 1e-12 * len(log_values) else 1.0


def binned(name: str, column: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Returns the values of a parameter in order, and which of them each machine has. More than
    MAX_EFFECT_VALUES numbers are put into EFFECT_BINS ranges of about as many machines each.

    >>> ranges, own = binned("clock_mhz", list(range(100, 200)))
    >>> ranges[0], ranges[-1], own[[0, 12, 13, 99]].tolist()
    ('100 to 112 MHz', '187 to 199 MHz', [0, 0, 1, 7])
    """
    values = sorted(set(column), key=lambda v: (isinstance(v, str), v))
    if len(values) <= MAX_EFFECT_VALUES or any(isinstance(v, str) for v in values):
        index_of = {value: i for i, value in enumerate(values)}
        return values, np.array([index_of[v] for v in column], np.int64)
    numbers = np.array(column, float)
    limits = np.unique(np.quantile(numbers, np.arange(1, EFFECT_BINS) / EFFECT_BINS, method="higher"))
    ranks, own = np.unique(np.searchsorted(limits, numbers, side="right"), return_inverse=True)
    ranges = []
    for rank in range(len(ranks)):
        low, high = (units.quantity(name, float(end(numbers[own == rank]))) for end in (np.min, np.max))
        unit = high[high.find(" ") :] if " " in high else ""
        ranges.append(low if low == high else f"{low.removesuffix(unit)} to {high}")
    return ranges, own


def uncertainty_factor(found: Sequence[Effect], explained: float, values: Values) -> float:
    """Returns exp(2 s / sqrt(n)): effects closer to 1 than this may be noise. s: residual standard deviation
    of the fit (logarithms); n: fewest machines of any value.

    >>> two = [Effect("a", 1, 0.5, 2), Effect("a", 2, 2.0, 2)]
    >>> uncertainty_factor(two, 1.0, np.array([1.0, 1.0, 4.0, 4.0]))
    1.0
    """
    y = np.log(values[np.isfinite(values) & (values > 0)])
    freedom = len(y) - 1 - len(found) + len({one.parameter for one in found})
    if not found or freedom < 1:
        return inf
    return float(
        np.exp(
            2
            * np.sqrt(
                max(1 - explained, 0.0) * y.var() * len(y) / freedom / min(one.machines for one in found)
            )
        )
    )


def effect_ratios(found: Sequence[Effect]) -> list[tuple[str, float]]:
    """Returns (parameter, largest factor / smallest factor of its values), largest ratio first."""
    factors_of: dict[str, list[float]] = {}
    for one in found:
        factors_of.setdefault(one.parameter, []).append(one.factor)
    return sorted(
        ((name, max(factors) / min(factors)) for name, factors in factors_of.items()),
        key=lambda pair: -pair[1],
    )


@dataclass(frozen=True, slots=True)
class Course:
    """How a run went, over machines done or over its time. volume: (x, share of the final hypervolume);
    done: the x at which `states` counts; states: status -> machines by then.
    """

    axis: str
    volume: Sequence[tuple[float, float]]
    done: Sequence[float]
    states: Mapping[str, Sequence[int]]


def course(axis: str, x: Values, status: Sequence[str], found_at: Values, values: Values) -> Course:
    """Returns how a run went.

    x: [M] where each machine stands on the axis, ascending; status: [M]
    found_at, values: [N], [N, k] the same of each feasible point, ascending, and what it costs (minimised)
    """
    spread = {round(i) for i in np.linspace(1, len(x), min(len(x), 2 * MAX_PROGRESS_POINTS))}
    ends = sorted({int(np.searchsorted(x, x[i - 1], side="right")) for i in spread})  # all that stand there
    counts = {one: np.cumsum([own == one for own in status]) for one in dict.fromkeys(status)}
    return Course(
        axis,
        list(dict(progress(found_at, values)).items()),  # of several in one place the last
        [float(x[end - 1]) for end in ends],
        {one: [int(total[end - 1]) for end in ends] for one, total in counts.items()},
    )


def elapsed(times: Values, sessions: Sequence[tuple[float, float]]) -> Values | None:
    """Returns how long the run had taken at each of these times, without the pauses between its sessions
    (begin, end); None if a time lies in none of them, as of files that were copied.

    >>> elapsed(np.array([12.0, 20.0, 51.0]), [(10.0, 20.0), (50.0, 60.0)]).tolist()
    [2.0, 10.0, 11.0]
    """
    inside = [(times >= begin) & (times <= end) for begin, end in sessions]
    if not inside or not np.all(np.any(inside, axis=0)):
        return None
    run_before = [np.clip(times - begin, 0.0, end - begin) for begin, end in sessions]
    return np.asarray(np.sum(run_before, axis=0))


def progress(done: Sequence[float] | Values, values: Values) -> list[tuple[float, float]]:
    """Returns (where on the axis, share of the final hypervolume) over a run.

    done: where each point was found: machines done, or seconds
    values: [N, k], minimised, in the order in which points were found

    The hypervolume is taken in the box of all values; its axes are logarithmic where all values have one
    sign.
    """
    if not len(values):
        return []
    scaled, reference = pareto.scaler(values)(values), np.full(values.shape[1], pareto.REFERENCE)
    final_volume = pareto.hypervolume(scaled, reference)
    ends = sorted(
        {max(1, round(len(values) * (i + 1) / MAX_PROGRESS_POINTS)) for i in range(MAX_PROGRESS_POINTS)}
    )
    best, found = scaled[:0], []
    for begin, end in pairwise([0, *ends]):
        best = np.vstack([best, scaled[begin:end]])
        best = best[pareto.front(best)]
        share = pareto.hypervolume(best, reference) / final_volume if final_volume else 1.0
        found.append((float(done[end - 1]), share))
    return found


def one_einsum(workload: Workload, solution: Solution, name: str | None) -> tuple[Einsum, EinsumCost]:
    """Returns the einsum with this name; None: the one with the highest energy. Raises ValueError."""
    pairs = costed_einsums(workload, solution)
    if name is None:
        c, e = max(pairs, key=lambda pair: pair[0].count * pair[0].energy_pj)
        return e, c
    first = {member: group.einsum.name for group in unique(workload) for member in group.names}
    for c, e in pairs:
        if c.name in (name, first.get(name)):
            return e, c
    advice = closest_name(name, first)
    raise ValueError(f"--einsum {name}: {workload.name} has no such einsum; {advice}")


def one_einsum_workload(workload: Workload, name: str) -> Workload:
    """Returns a workload of only the einsum with this name, run once."""
    selected = [e for e in workload.einsums if e.name == name]
    if not selected:
        raise ValueError(
            f"--einsum {name}: {workload.name} has no such einsum; there are "
            f"{', '.join(e.name for e in workload.einsums)}"
        )
    return replace(
        workload, name=f"{workload.name}: {name}", einsums=tuple(selected), repeats=(), loop_state=()
    )
