"""SMAUG as a mapper: an einsum read as one of its operators, its schedule as a Mapping of our nest, or priced by replay.

A schedule lies in the nest space where its tiles are equal up to the last and hold what their outputs read and no more; then the
evaluator prices it. Elsewhere every kernel call is priced as a nest over its own scratchpads, loads and sends by replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from random import Random

import numpy as np

from dse.nest import Infeasible, Loop, Mapping, Store, mapping_key
from dse.sim.cost import bits_of
from dse.sim.counts import Count, Footprint, count
from dse.sim.evaluate import EinsumCost, Problem, einsum_cost, priced
from dse.tiling.factor import Ints, Unit, lanes, unit
from dse.tiling.halo import Copies, Tiled, copies, needed, uniform
from dse.tiling.reading import Reading, read
from dse.tiling.schedule import Calls, calls, traffic
from dse.tiling.smaug import WINDOWED, Tiling, tile, unsupported
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key

OUTSIDE = Mapping(())  # stands for a schedule outside the nest space
LETTERS = {"n": "N", "h": "H", "w": "W", "m": "M", "o": "M", "c": "C"}  # loop of a schedule -> dimension


@dataclass(frozen=True, slots=True)
class Plan:
    """What SMAUG does with an einsum. mapping: its nest, or OUTSIDE; outside: why it is no nest, "" if it is one."""

    reading: Reading
    unit: Unit
    tiling: Tiling
    mapping: Mapping
    outside: str


def smaug(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """One solution; rng is not used. Where the schedule is outside the nest space its mapping is OUTSIDE, and its certificate says why."""
    found = plan(problem.einsum, problem.arch)
    if isinstance(found, Infeasible):
        return found
    cost = einsum_cost(problem, found.mapping) if not found.outside else _replayed(problem, found)
    return cost if isinstance(cost, Infeasible) else [cost]


def plan(e: Einsum, arch: Arch) -> Plan | Infeasible:
    """Reading, tiling and nest of one einsum on one machine."""
    bits = set(bits_of(e, arch).values())
    if len(bits) > 1:
        return unsupported(e.name, "optimizers of tensors with elements of several sizes")
    u = unit(arch, bits.pop())
    if u is None:
        return unsupported(e.name, f"level between {arch.levels[0].name} and the array")
    if kept := [level.name for level in arch.levels[1:_inner(arch)] if not level.bypass and level.name not in u.names]:
        return unsupported(e.name, f"way past level {kept[0]}, which no tensor may bypass")
    reading = read(e)
    if isinstance(reading, Infeasible):
        return reading
    tiling = tile(reading.operator, u)
    if isinstance(tiling, Infeasible):
        return tiling
    why = outside(tiling, u, tiling.operator.kind == "unary" and len(e.inputs) > 1)
    mapping = OUTSIDE if why else export(e, arch, reading, tiling, u)
    if not why and isinstance(full := einsum_cost(Problem(arch, e, "energy"), mapping), Infeasible):
        mapping, why = OUTSIDE, f"{full.level} would need {full.need_bytes} bytes with the padding, which SMAUG does not store"
    return Plan(reading, u, tiling, mapping, why)


def host_copies(found: Plan) -> dict[str, Copies]:
    """What the host copies to cut each input and to put the output together."""
    repeats = _repeats(found.reading)
    made = {name: copies(t) for name, t in found.tiling.tensors.items()}
    return {name: replace(c, number=c.number * repeats, elems=c.elems * repeats) for name, c in made.items()}


def _repeats(reading: Reading) -> int:
    return prod(size for _, size in reading.groups)


def _inner(arch: Arch) -> int:
    return arch.fanouts[-1].outside if arch.fanouts else len(arch.levels)


def outside(t: Tiling, u: Unit, moves: bool) -> str:
    """Why a schedule is no nest with storage nodes; "" if it is one. moves: its one input is several tensors."""
    trips, op, tensors = dict(t.nest.loops), t.operator, t.tensors
    if u.accelerators > 1:
        return "several accelerators in turn"
    if t.nest.last_only:
        return "results are sent at the last call only"
    if "t" in trips:
        return "several inputs are moved into one output" if moves else _flat_outside(t)
    if trips.get("o", 1) > 1 and (trips.get("c", 1) > 1 or "weights" in t.nest.always):
        return "a weight tile of more kernels than the output tile is loaded again"
    for dim, w in zip((1, 2), op.windows(), strict=True):
        if len(op.shape) == 4 and op.kind in ("convolution", "depthwise", "pooling"):
            made = tensors["outputs"].cuts[dim]
            if not uniform(made):
                return "the first tile has more rows than the next"
            if any(needed(piece, w, op.shape[dim]) != held for piece, held in zip(made, tensors["inputs"].cuts[dim], strict=False)):
                return "tiles hold rows or columns that no window reads"
    return ""


def _flat_outside(t: Tiling) -> str:
    whole, cut = prod(t.operator.shape), t.tensors["inputs"].tile[1]
    if t.tensors["inputs"].shape[1] != whole:
        return "tiles hold the padding of the innermost dimension"
    return "" if cut == whole or _flat_loop(t) else "tiles cut rows in the middle"


def _flat_loop(t: Tiling) -> tuple[int, int] | None:
    """(dimension, its tile) of consecutive elements, where one loop cuts them."""
    shape, cut = t.operator.shape, t.tensors["inputs"].tile[1]
    dim = next((i for i, n in enumerate(shape) if n > 1), 0)
    rest = prod(shape[dim + 1:])
    return (dim, cut // rest) if cut % rest == 0 else None


def holders(e: Einsum, t: Tiling) -> dict[str, tuple[str, ...]]:
    """Tensor of the tiling -> tensors of the einsum."""
    names = [p.tensor for p in e.inputs]
    if t.operator.kind == "unary":
        return {"inputs": tuple(names), "outputs": (e.output.tensor,)}
    if t.operator.kind == "batch_norm":
        return {"inputs": (names[0],), "weights": tuple(names[1:]), "outputs": (e.output.tensor,)}
    return {name: (tensor,) for name, tensor in zip(t.tensors, [*names, e.output.tensor], strict=True)}


def _home(name: str, u: Unit) -> str:
    return u.names[{"inputs": 0, "outputs": 2}.get(name, 1)]


def _sizes(t: Tiling) -> dict[str, int]:
    """Loop of the schedule -> the tile that it leaves of its dimension."""
    tensors = t.tensors
    deep = tensors["weights"] if "weights" in tensors and tensors["weights"].grid()[-1] > 1 else tensors["inputs"]
    rows = {"h": tensors["outputs"].cuts[1][0][1], "w": tensors["outputs"].cuts[2][0][1]} if len(tensors["outputs"].shape) == 4 else {}
    m = tensors["weights"].tile[0] if "weights" in tensors else 1
    return {"n": tensors["outputs"].tile[0], "m": m, "o": tensors["outputs"].tile[-1], "c": deep.tile[-1]} | rows


def export(e: Einsum, arch: Arch, reading: Reading, t: Tiling, u: Unit) -> Mapping:
    """The nest of a schedule: each tensor's node stands right below the innermost loop that moves it, which is the one-entry rule."""
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, p.tensor) for p in e.tensors()]
    left = e.sizes()
    for rank, _ in reading.groups:
        nodes.append(Loop(rank, 1))
        left[rank] = 1
    loops = [(name, LETTERS.get(name, name), n) for name, n in t.nest.loops if n > 1]
    depends = {name: {loop for names in words for loop in names} for name, words in t.nest.index.items()}
    at = {name: len(loops) if name in t.nest.always else max((i + 1 for i, (loop, _, _) in enumerate(loops) if loop in seen), default=0)
          for name, seen in depends.items()}
    sizes, held = _sizes(t) if "t" not in depends["inputs"] else {}, holders(e, t)
    flat = _flat_loop(t) if "t" in depends["inputs"] else None
    for i in range(len(loops) + 1):
        nodes += [Store(_home(name, u), tensor) for name, place in at.items() if place == i for tensor in held[name]]
        for name, letter, _ in loops[i:i + 1]:
            rank, size = (reading.ranks[letter], sizes[name]) if flat is None else (reading.ranks[str(flat[0] - (len(t.operator.shape) - len(left)))], flat[1])
            nodes.append(Loop(rank, size))
            left[rank] = size
    return Mapping((*nodes, *_kernel(e, arch, reading, u, left)))


def _kernel(e: Einsum, arch: Arch, reading: Reading, u: Unit, left: dict[str, int]) -> Iterator[Loop | Store]:
    """The order inside a tile: blocks of output channels, window, blocks of input channels, rows, columns (specs/tiling.md, 10)."""
    left, ranks = dict(left), reading.ranks
    mac, order = e.kind == "mac", [ranks[letter] for letter in ("MRSCNHW" if e.kind == "mac" else "NHWCRS") if letter in ranks]
    order = order or list(left)
    pes, macs = lanes(arch, [level.name for level in arch.levels].index(u.names[0]))
    spread = {ranks.get("M" if "M" in ranks else "C" if reading.operator.kind == "depthwise" else "", ""): pes} if mac else {}
    if mac and "C" in ranks and ranks["C"] not in spread:
        spread[ranks["C"]] = macs
    blocks = [rank for rank in order if rank not in (ranks.get("N"), ranks.get("H"), ranks.get("W"))] if mac else order
    for rank in blocks:
        size = prod(n for _, n in spread.get(rank, ()))
        if left[rank] > size:
            yield Loop(rank, size)
            left[rank] = size
    for rank, dims in spread.items():
        for name, n in dims if rank else ():
            if left[rank] > 1:
                left[rank] = -(-left[rank] // n)
                yield Loop(rank, left[rank], name)
    inner = arch.levels[_inner(arch):]
    if mac:
        yield from (Store(level.name, e.inputs[1].tensor) for level in inner[:1] if level.bypass)
    yield from (Loop(rank, 1) for rank in [*order, *left] if left.pop(rank, 1) > 1)
    yield from (Store(level.name, p.tensor) for level in inner if not level.bypass for p in e.tensors())


def _replayed(problem: Problem, found: Plan) -> EinsumCost:
    """Cost of a schedule call by call; the key of its mapping names its tiles."""
    e, t, u = problem.einsum, found.tiling, found.unit
    held = holders(e, t)
    footprint = tuple(Footprint(_home(name, u), tensor, prod(tiled.tile) // len(held[name]), True)
                      for name, tiled in t.tensors.items() for tensor in held[name])
    key = canonical_key(e)
    cost = priced(problem, OUTSIDE, replayed_counts(e, problem.arch, found), footprint)
    text = ";".join(f"{name}{tiled.shape}{tiled.cuts}" for name, tiled in t.tensors.items()) + f"{t.nest}{u.accelerators}"
    return replace(cost, mapping_key=mapping_key(f"{key}\n{text}", OUTSIDE), certificate=f"outside the nest space: {found.outside}")


def replayed_counts(e: Einsum, arch: Arch, found: Plan) -> tuple[Count, ...]:
    """Actions of a schedule: each kind of kernel call as a nest over the scratchpads, loads and sends by replay."""
    t, u, repeats = found.tiling, found.unit, _repeats(found.reading)
    c = calls(t.nest, t.tensors, u.accelerators)
    total: dict[tuple[str, str, str], float] = {}
    own: list[dict[tuple[str, str, str], float]] = [{} for _ in range(u.accelerators)]

    def add(a: int, key: tuple[str, str, str], elems: float, busy: float) -> None:
        total[key] = total.get(key, 0) + elems * repeats
        own[a][key] = own[a].get(key, 0) + busy * repeats

    for call, n in _kinds(e, found, c):
        for row in _call_counts(e, arch, found, call):
            add(call[0], (row.level, row.tensor, row.action), row.elems * n, row.busiest_elems * n)
    outer, output = arch.levels[0].name, list(t.tensors)[-1]
    held, sizes = holders(e, t), {p.tensor: p.stored_elems() for p in e.tensors()}
    for a in range(u.accelerators):
        for name, words in _own_traffic(t, c, a).items():
            for tensor in held[name]:
                elems, home = words * sizes[tensor] / sum(sizes[other] for other in held[name]), _home(name, u)
                add(a, (outer, tensor, "write" if name == output else "read"), elems, elems)
                add(a, (home, tensor, "read" if name == output else "write"), elems, elems)
    return tuple(Count(*key, n, n if key[0] == outer else max(part.get(key, 0) for part in own)) for key, n in total.items() if n)


def _own_traffic(t: Tiling, c: Calls, a: int) -> dict[str, float]:
    """Elements that one accelerator loads and sends; of an output tile that several share, its share of the calls."""
    mine = c.accelerator == a
    if mine.all():
        return {name: float(n) for name, n in traffic(c, t.tensors).items()}
    output = list(t.tensors)[-1]
    elems = {name: tiled.elems() for name, tiled in t.tensors.items()}
    found = {name: float((elems[name][c.tile[name]] * c.load[name])[mine].sum()) for name in c.load}
    shared = np.bincount(c.tile[output], minlength=len(elems[output]))
    found[output] = float((elems[output] / np.maximum(shared, 1))[c.tile[output][mine]].sum())
    return found


Call = tuple[int, bool, dict[str, int], tuple[tuple[int, int], ...]]


def _kinds(e: Einsum, found: Plan, c: Calls) -> Iterator[tuple[Call, int]]:
    """The different kernel calls and how many of each: accelerator, whether it accumulates, size of every rank, (offset, size) of rows and columns."""
    t, ranks = found.tiling, found.reading.ranks
    fixed = dict.fromkeys((rank for rank, _ in found.reading.groups), 1)
    columns = {rank: np.full(len(c.accelerator), n) for rank, n in (e.sizes() | fixed).items()}
    for letter, name, dim in _measures(t):
        if letter in ranks:
            columns[ranks[letter]] = _piece(t.tensors[name], c.tile[name], dim)[1]
    if "t" in dict(t.nest.loops):
        columns = {rank: np.ones_like(c.accelerator) for rank in columns}
        columns[next(iter(columns))] = t.tensors["inputs"].elems()[c.tile["inputs"]]
    places: list[Ints] = []
    for dim, w in zip((1, 2), t.operator.windows(), strict=True) if t.operator.kind in WINDOWED else ():
        origin, held = _piece(t.tensors["inputs"], c.tile["inputs"], dim)
        places += [_piece(t.tensors["outputs"], c.tile["outputs"], dim)[0] * w.step - w.lead - origin, held]
    table = np.stack([c.accelerator, c.accumulate, *columns.values(), *places], axis=1)
    rows, number = np.unique(table, axis=0, return_counts=True)
    for row, n in zip(rows.tolist(), number.tolist(), strict=True):
        rest = row[2 + len(columns):]
        sizes = dict(zip(columns, row[2:2 + len(columns)], strict=True))
        yield (row[0], bool(row[1]), sizes, tuple(zip(rest[::2], rest[1::2], strict=True))), n


def _piece(tiled: Tiled, number: Ints, dim: int) -> tuple[Ints, Ints]:
    """Origin and extent in one dimension of tiles by number."""
    pieces = np.array(tiled.cuts[dim])[np.unravel_index(number, tiled.grid())[dim]]
    return pieces[:, 0], pieces[:, 1]


def _measures(t: Tiling) -> Iterator[tuple[str, str, int]]:
    """(dimension, tensor, its dimension) that say how large a call is."""
    tensors = t.tensors
    yield "N", "outputs", 0
    if len(tensors["outputs"].shape) == 4:
        yield "H", "outputs", 1
        yield "W", "outputs", 2
    if "weights" in tensors:
        yield "M", *(("outputs", -1) if dict(t.nest.loops).get("o", 1) > 1 else ("weights", 0))
    yield "C", "weights" if "weights" in tensors and tensors["weights"].grid()[-1] > 1 else "inputs", -1


def _call_counts(e: Einsum, arch: Arch, found: Plan, call: Call) -> tuple[Count, ...]:
    """Actions inside one kernel call; one that adds to earlier sums reads them. Its windows slide over the tile that is held."""
    _, accumulates, sizes, places = call
    ranks = found.reading.ranks
    if accumulates:
        arch = replace(arch, levels=tuple(replace(level, skip_first_read=False) for level in arch.levels))
    x = e.inputs[0]
    for letters, (offset, size) in zip(("HR", "WS"), places, strict=False):
        own = {ranks[letter] for letter in letters if letter in ranks}
        x = replace(x, dims=tuple(replace(d, offset=offset, size=size) if own & set(d.ranks()) else d for d in x.dims))
    part = replace(e, inputs=(x, *e.inputs[1:]), extents=tuple(sizes.items()))
    stores = [Store(_home(name, found.unit), tensor) for name, tensors in holders(e, found.tiling).items() for tensor in tensors]
    return count(Mapping((*stores, *_kernel(part, arch, found.reading, found.unit, sizes))), part, arch)
