"""Families: machines that one frontier prices (frontier.py), and what they have in common.

Their levels and fan-outs are the same; prices, bandwidths, capacities and array sizes differ. The ratios between prices of neighbouring levels, and between
the speeds of components, have ranges: within them a mapping can be cheaper than another one on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from dse.dataflow.optimal import bare_arch
from hw.arch import Arch, Level

SHAPES, CELLS = 62, 1024  # array sizes (a bit each), these and capacities: more are slower than machine by machine
MUCH = 1e30  # a ratio that stands for infinity, without its arithmetic (0 * inf)


class NoFrontier(ValueError):
    """Why there is none, in one line."""


@dataclass(frozen=True, slots=True)
class Family:
    """Machines that one frontier prices: as `arch`, the largest, but for prices, bandwidths, and

    rooms: capacities in bits per level, ascending, none if unbounded; shapes: sizes of all fan-out dimensions; per level from, to: shares of a write in the
    energy of a read and a write, ratios of that energy per bit to the level outside; separate: ports per level; limited: whether bandwidth may be finite;
    hides [a][b]: so many bits of level a take no longer than one bit of level b on any of the machines, 0 if that says nothing; a, b up to V, where V is
    compute and its bits are operations of a lane. With 0.5 and 10 bits of b, up to 5 bits of a never set the latency.
    """

    arch: Arch
    rooms: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, float], ...]
    ratios: tuple[tuple[float, float], ...]
    separate: tuple[bool, ...]
    limited: tuple[bool, ...]
    hides: tuple[tuple[float, ...], ...]


def family(archs: Sequence[Arch]) -> Family:
    """The least family that holds these machines. Raises NoFrontier if they share no topology, or one that frontiers do not know."""
    bare = {topology(arch) for arch in archs}
    if len(bare) != 1:
        raise NoFrontier(f"the machines have {len(bare)} different topologies")
    one = archs[0]
    borders = {f.outside for f in one.fanouts}
    if len(borders) != 1 or min(borders) == 0 or any(f.ramp for f in one.fanouts) or one.levels[0].bypass:
        raise NoFrontier("takes one array below the first level, which holds everything, and no systolic one")
    if any(level.double_buffer for level in one.levels[min(borders):]):
        raise NoFrontier("takes no double buffering inside the array")
    if one.overlap != "free":
        raise NoFrontier("takes overlap: free, where the latency is the largest busy time")
    columns = list(zip(*(arch.levels for arch in archs), strict=True))
    rooms = tuple(tuple(sorted({level.capacity_bits for level in own if level.capacity_bits is not None})) for own in columns)
    shapes = tuple(sorted({shape_of(arch) for arch in archs}))
    cells = len(shapes) * prod(max(len(own), 1) for own in rooms)
    if len(shapes) > SHAPES or cells > CELLS:
        raise NoFrontier(f"{len(shapes)} array sizes, {cells:,} with the capacities; takes {SHAPES}, {CELLS}")
    largest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    levels = tuple(replace(level, capacity_bits=own[-1] if own else None) for level, own in zip(one.levels, rooms, strict=True))
    separate = tuple(any(level.ports == "separate" for level in own) for own in columns)
    return Family(replace(_sized(one, largest), levels=levels), rooms, shapes, tuple(_span(map(_share, own), 0.5) for own in columns),
                  tuple(_span((_ratio(arch, v) for arch in archs), 1.0) for v in range(len(levels))), separate,
                  tuple(any(level.bandwidth < inf for level in own) for own in columns), _hides(archs))


def _hides(archs: Sequence[Arch]) -> tuple[tuple[float, ...], ...]:
    """Family.hides: the least ratio of cycles per bit, b over a, of any machine. It holds where the latency is the largest busy time; row a is 0 if its
    reads and writes share a port on some of the machines only."""
    depth, per = len(archs[0].levels) + 1, np.array([_cycles(arch) for arch in archs])
    found = np.zeros((depth, depth))
    for v in range(depth):
        if v == depth - 1 or len({arch.levels[v].ports for arch in archs}) == 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                found[v] = np.nan_to_num(per / per[:, [v]], nan=0.0, posinf=MUCH).min(axis=0)
    np.fill_diagonal(found, 0.0)
    return tuple(map(tuple, found.tolist()))


def _span(found: Iterable[float | None], default: float) -> tuple[float, float]:
    known = [one for one in found if one is not None]
    return min(known, default=default), max(known, default=default)


def _share(level: Level) -> float | None:
    return level.write_pj / (level.read_pj + level.write_pj) if level.read_pj + level.write_pj else None


def _ratio(arch: Arch, v: int) -> float | None:
    """What a bit read and written costs, in units of the level outside; None if both cost nothing."""
    inner, outer = ((own.read_pj + own.write_pj) / own.width_bits for own in (arch.levels[v], arch.levels[max(v - 1, 0)]))
    return min(inner / outer, MUCH) if outer else MUCH if inner else None


def _cycles(arch: Arch) -> list[float]:
    """Cycles per bit of every level, per operation of a lane."""
    return [*(1 / (level.width_bits * level.bandwidth) for level in arch.levels), 1 / arch.compute.ops_per_cycle]


def covers(f: Family, arch: Arch) -> bool:
    """Whether its frontiers price this machine."""
    if topology(f.arch) != topology(arch) or shape_of(arch) not in f.shapes:
        return False
    for v, level in enumerate(arch.levels):
        if (level.capacity_bits is None) != (not f.rooms[v]) or (f.rooms[v] and level.capacity_bits not in f.rooms[v]):
            return False
        if not (_within(_share(level), f.shares[v]) and _within(_ratio(arch, v), f.ratios[v])) or (level.bandwidth < inf) > f.limited[v]:
            return False
        separate = level.ports == "separate"
        if separate > f.separate[v] or (any(f.hides[v]) and separate != f.separate[v]):
            return False
    per = np.array(_cycles(arch))
    return bool((np.array(f.hides) * per[:, None] <= per * (1 + 1e-12)).all())


def _within(one: float | None, span: tuple[float, float]) -> bool:
    return one is None or span[0] <= one <= span[1]


def topology(arch: Arch) -> tuple[Arch, int]:
    return bare_arch(_sized(arch, (1,) * len(shape_of(arch)))), arch.word_bits


def shape_of(arch: Arch) -> tuple[int, ...]:
    return tuple(size for f in arch.fanouts for _, size in f.dims)


def _sized(arch: Arch, shape: Sequence[int]) -> Arch:
    sizes = iter(shape)
    return replace(arch, fanouts=tuple(replace(f, dims=tuple((name, next(sizes)) for name, _ in f.dims)) for f in arch.fanouts))


def cell(f: Family, arch: Arch) -> int:
    """Number of a machine's capacities and array size within its family."""
    found = f.shapes.index(shape_of(arch))
    for rooms, level in zip(f.rooms, arch.levels, strict=True):
        found = found * max(len(rooms), 1) + (rooms.index(level.capacity_bits) if level.capacity_bits is not None else 0)
    return found
