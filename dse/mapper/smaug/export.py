"""SMAUG's schedule as a nest: whether there is one, and where its loops and storage nodes stand.

There is one where the tiles along a dimension are equal, except for the last, and where each input tile holds
exactly what its outputs read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from dse.mapper.smaug.factor import Unit, pe_dims
from dse.mapper.smaug.halo import input_range, is_uniform
from dse.mapper.smaug.reading import Reading
from dse.mapper.smaug.smaug import WINDOWED, Tiling
from dse.mapping.nest import Loop, Mapping, Store, may_keep
from hw.arch import Arch
from workloads.einsum import Einsum

# Loop of a schedule -> dimension. Loops of SMAUG: m tiles of weight kernels, o output tiles within them;
# t tiles of a flattened row of elements (no dimension).
DIMENSION_OF_LOOP = {"n": "N", "h": "H", "w": "W", "m": "M", "o": "M", "c": "C"}


@dataclass(frozen=True, slots=True)
class Schedule:
    """An einsum tiled on one machine."""

    operator_view: Reading  # the einsum matched to a SMAUG operator (dimensions -> ranks)
    accelerator: Unit  # the machine as SMAUG's tiling sees it
    tiling: Tiling  # its tiles, and the nest over them


def levels_outside_inner_array(arch: Arch) -> int:
    """The number of levels outside of the innermost array."""
    return arch.fanouts[-1].outside if arch.fanouts else len(arch.levels)


def why_no_nest(t: Tiling, machine: Unit, moves: bool) -> str:
    """Why a schedule is no nest with storage nodes; "" if it is one.

    moves: whether the operator copies several tensors of the einsum, which it sees as one input.
    """
    trips, op, tensors = dict(t.nest.loops), t.operator, t.tensors
    if machine.accelerators > 1:
        return "several accelerators by turns"
    if t.nest.last_only:
        return "outputs are sent back only once, after the last accelerator call"
    if "t" in trips:
        return "several inputs are moved into one output" if moves else _why_no_flat_nest(t)
    if trips.get("o", 1) > 1 and (trips.get("c", 1) > 1 or "weights" in t.nest.always):
        return "a weight tile spans several output tiles and is reloaded for each of them"
    for dim, w in zip((1, 2), op.windows(), strict=True):
        if len(op.shape) == 4 and op.kind in WINDOWED:
            output_cuts = tensors["outputs"].cuts[dim]
            if not is_uniform(output_cuts):
                return "the first tile has more rows than the next"
            if any(
                input_range(piece, w, op.shape[dim]) != input_cut
                for piece, input_cut in zip(output_cuts, tensors["inputs"].cuts[dim], strict=False)
            ):
                return "tiles hold rows or columns that no window reads"
    return ""


def _why_no_flat_nest(t: Tiling) -> str:
    """Why the schedule of an operator that is tiled as one row of elements is no nest; "" if it is one."""
    elems, tile_elems = prod(t.operator.shape), t.tensors["inputs"].tile[1]
    if t.tensors["inputs"].shape[1] != elems:
        return "tiles hold the padding of the innermost dimension"
    return "" if tile_elems == elems or _flat_loop(t) else "tiles cut rows in the middle"


def _flat_loop(t: Tiling) -> tuple[int, int] | None:
    """(dimension, its tile) of the loop that cuts a row of elements into these tiles; None if it takes more
    than one loop.
    """
    shape, tile_elems = t.operator.shape, t.tensors["inputs"].tile[1]
    dim = next((i for i, n in enumerate(shape) if n > 1), 0)
    inner_elems = prod(shape[dim + 1 :])
    return (dim, tile_elems // inner_elems) if tile_elems % inner_elems == 0 else None


def einsum_tensors_of(e: Einsum, t: Tiling) -> dict[str, tuple[str, ...]]:
    """Per tensor of the tiling, the tensors of the einsum that it stands for."""
    names = [p.tensor for p in e.inputs]
    if t.operator.kind == "unary":
        return {"inputs": tuple(names), "outputs": (e.output.tensor,)}
    if t.operator.kind == "batch_norm":
        return {"inputs": (names[0],), "weights": tuple(names[1:]), "outputs": (e.output.tensor,)}
    return {name: (tensor,) for name, tensor in zip(t.tensors, [*names, e.output.tensor], strict=True)}


def home(name: str, machine: Unit) -> str:
    """The level that holds a tensor of the tiling."""
    return machine.names[{"inputs": 0, "outputs": 2}.get(name, 1)]


def sizes_of(t: Tiling) -> dict[str, int]:
    """Per loop of the schedule, the size of its tile."""
    tensors = t.tensors
    channel_tensor = (
        tensors["weights"]
        if "weights" in tensors and tensors["weights"].grid()[-1] > 1
        else tensors["inputs"]
    )
    # of a transposed convolution, loops are over rows of the input
    image = tensors["inputs" if t.operator.kind == "transposed" else "outputs"]
    image_sizes = (
        {"h": image.cuts[1][0][1], "w": image.cuts[2][0][1]} if len(tensors["outputs"].shape) == 4 else {}
    )
    m = tensors["weights"].tile[0] if "weights" in tensors else 1
    return {
        "n": tensors["outputs"].tile[0],
        "m": m,
        "o": tensors["outputs"].tile[-1],
        "c": channel_tensor.tile[-1],
    } | image_sizes


def export(e: Einsum, arch: Arch, s: Schedule) -> Mapping:
    """The nest of a schedule. Each tensor's node stands directly below the innermost loop that changes its
    tile, since SMAUG reuses only the tile that was loaded last. A tensor that is always loaded stands below
    all loops.
    """
    view, t, machine = s.operator_view, s.tiling, s.accelerator
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, p.tensor) for p in e.tensors()]
    tile = e.sizes()
    for rank, _ in view.repeated_ranks:
        nodes.append(Loop(rank, 1))
        tile[rank] = 1
    loops = [(name, DIMENSION_OF_LOOP.get(name, name), n) for name, n in t.nest.loops if n > 1]
    # tensor -> loops that change its tile (t.nest.index: per dimension of a tensor, the loops that index it)
    loops_of_tensor = {
        name: {loop for loops_of_dim in dims for loop in loops_of_dim} for name, dims in t.nest.index.items()
    }
    depth_of = {
        name: len(loops)
        if name in t.nest.always
        else max((i + 1 for i, (loop, _, _) in enumerate(loops) if loop in tensor_loops), default=0)
        for name, tensor_loops in loops_of_tensor.items()
    }
    sizes, tensors_of = sizes_of(t) if "t" not in loops_of_tensor["inputs"] else {}, einsum_tensors_of(e, t)
    flat_loop = _flat_loop(t) if "t" in loops_of_tensor["inputs"] else None
    for i in range(len(loops) + 1):
        nodes += [
            Store(home(name, machine), tensor)
            for name, depth in depth_of.items()
            if depth == i
            for tensor in tensors_of[name]
        ]
        for name, letter, _ in loops[i : i + 1]:
            rank, size = (
                (view.ranks[letter], sizes[name])
                if flat_loop is None
                else (view.ranks[str(flat_loop[0] - (len(t.operator.shape) - len(tile)))], flat_loop[1])
            )
            nodes.append(Loop(rank, size))
            tile[rank] = size
    return Mapping((*nodes, *kernel(e, arch, s, tile)))


def kernel(e: Einsum, arch: Arch, s: Schedule, tile: dict[str, int]) -> Iterator[Loop | Store]:
    """Yields the nest inside a tile, in the order of SMAUG's kernels: blocks of output channels, window,
    blocks of input channels, rows, columns. tile: size of the tile per rank.
    """
    tile, ranks, kind = dict(tile), s.operator_view.ranks, s.operator_view.operator.kind
    mac = e.kind == "mac"
    order = [ranks[letter] for letter in ("MRSCNHW" if e.kind == "mac" else "NHWCRS") if letter in ranks]
    order = order or list(tile)
    pes, macs = pe_dims(arch, [level.name for level in arch.levels].index(s.accelerator.names[0]))
    unrolled = (
        {ranks.get("M" if "M" in ranks else "C" if kind == "depthwise" else "", ""): pes} if mac else {}
    )
    if mac and "C" in ranks and ranks["C"] not in unrolled:
        unrolled[ranks["C"]] = macs
    # ranks whose loop over blocks stands outside the PEs
    blocked_ranks = (
        [rank for rank in order if rank not in (ranks.get("N"), ranks.get("H"), ranks.get("W"))]
        if mac
        else order
    )
    for rank in blocked_ranks:
        size = prod(n for _, n in unrolled.get(rank, ()))
        if tile[rank] > size:
            yield Loop(rank, size)
            tile[rank] = size
    for rank, dims in unrolled.items():
        for name, n in dims if rank else ():
            if tile[rank] > 1:
                tile[rank] = -(-tile[rank] // n)
                yield Loop(rank, tile[rank], name)
    inner = arch.levels[levels_outside_inner_array(arch) :]
    if mac:
        yield from (
            Store(level.name, e.inputs[1].tensor)
            for level in inner[:1]
            if level.bypass and "weight" in level.may_keep
        )
    yield from (Loop(rank, 1) for rank in [*order, *tile] if tile.pop(rank, 1) > 1)
    yield from (
        Store(level.name, tensor) for level in inner if not level.bypass for tensor in may_keep(e, level)
    )
