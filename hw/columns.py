"""Many machines of a space as columns, a row each: what bounds read of them, equal to the `Arch` of each. A
node is built once per choice of its own fields and of the machine's, however many machines have it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.arch import (
    LAYOUT_FIELDS,
    Arch,
    Array,
    Compute,
    FieldRole,
    Level,
    Machine,
    MacUnit,
    Memory,
    Node,
    Slot,
    fields_of,
    structure_of,
)
from hw.component import (
    ComponentError,
    compute_of,
    contradictions,
    fanout_of,
    level_of,
    nesting_faults,
    order_faults,
    outline,
    word_bits_of,
)
from hw.space import HEAD, Axis, Space, Value, apply
from workloads.arrays import Floats, Ints

NESTING = ("kind", *LAYOUT_FIELDS)  # fields of memories that decide how nodes may stand inside each other
COUNTED: tuple[FieldRole, ...] = ("price", "rate")  # of levels and of what computes, a column each
# which what computes decides
OWN = tuple(name for name in fields_of(Arch, "structure", "tiles") if name != "word_bits")
SILICON = ("node_nm", "cell")  # fields of machines that of all memories only an sram depends on


@dataclass(frozen=True, slots=True)
class Columns:
    """Of n machines with V levels and D dimensions of arrays; outside: [D] levels outside of each.

    levels [n, V], compute [n]: prices and rates by the names of their fields; NaN: a rate of None.
    width_bits, separate: [n, V]. outer_bits [n]: capacity of the outermost level, inf where there is no
    limit. sizes: [n, D] lanes along a dimension; shares: [n, D, 2] whether reads are multicast along it,
    writes reduced. leak_mw, area_mm2: of all instances. shape: [n, nodes + 1] a number per node and for the
    machine, equal where they differ at most in prices, rates and clock. Others [n], as in `Arch`.
    """

    outside: Ints
    levels: Mapping[str, Floats]
    compute: Mapping[str, Floats]
    width_bits: Ints
    separate: NDArray[np.bool_]
    outer_bits: Floats
    sizes: Ints
    shares: NDArray[np.bool_]
    clock_ghz: Floats
    word_bits: Ints
    leak_mw: Floats
    area_mm2: Floats
    shape: Ints

    @property
    def mac_units(self) -> Ints:
        """[n] MAC units of each machine."""
        return np.asarray(self.sizes.prod(axis=1), dtype=np.int64)

    def take(self, rows: Ints) -> Columns:
        """Of some of the machines."""
        return _each([self], lambda some: some[0][rows])

    def named(self, name: str) -> NDArray[Any]:
        """The column of a field: a price or rate, or another one."""
        for own in (self.levels, self.compute):
            if name in own:
                return own[name]
        return np.asarray(getattr(self, name))

    def at(self, slot: Slot) -> Floats:
        """[n] of a price or rate. Raises KeyError for those of nodes that have no columns."""
        return (
            self.compute[slot.field]
            if slot.nodes == "compute"
            else {"levels": self.levels}[slot.nodes][slot.field][:, slot.number]
        )


def alike(rows: NDArray[Any]) -> tuple[Ints, Ints]:
    """Of rows [n, k] that are equal the first one, and which of these each is [n].

    >>> first, which = alike(np.array([[1, 2], [3, 2], [1, 2]]))
    >>> first.tolist(), which.tolist()
    ([0, 1], [0, 1, 0])
    """
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        if (column != column[:1]).any():
            values, own = np.unique(column, return_inverse=True)
            code = np.unique(code * len(values) + own, return_inverse=True)[1]
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return first, which


def joined(several: Sequence[Columns]) -> Columns:
    """Of all their machines, of one space."""
    return _each(several, np.concatenate)


def _each(several: Sequence[Columns], of: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> Columns:
    """Columns made of the equal ones of several."""
    first, own = several[0], [one.name for one in fields(Columns)[1:]]
    changes: dict[str, Any] = {
        name: of([getattr(one, name) for one in several]) for name in own if name not in ("levels", "compute")
    }
    for kind in ("levels", "compute"):
        changes[kind] = {
            name: of([getattr(one, kind)[name] for one in several]) for name in getattr(first, kind)
        }
    return replace(first, **changes)


Row = tuple[float, ...]  # numbers of one node; empty: it cannot be built


@dataclass(slots=True)
class NodeColumns:
    """One node in all choices of its fields met so far. axes: places in the space of those that it depends
    on; make: its numbers from their values; silicon: of these axes those that it depends on as an sram alone,
    by the kind that it has, or that axis `kind` gives it.
    """

    axes: tuple[int, ...]
    make: Callable[[Mapping[str, Value]], Row]
    width: int
    silicon: tuple[int, ...] = ()
    kind: int | str = "sram"
    memo: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # choices, as numbers, in order
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # of each of them

    def of(self, space: Space, digits: Ints) -> tuple[NDArray[np.bool_], Floats]:
        """Which machines have it, and its numbers [n, width]; NaN where it cannot be built."""
        code = np.zeros(len(digits), np.int64)
        sram = (
            np.array([value == "sram" for value in space.axes[self.kind].values])[digits[:, self.kind]]
            if isinstance(self.kind, int)
            else self.kind == "sram"
        )
        for at in self.axes:
            code = code * len(space.axes[at].values) + digits[:, at] * (sram if at in self.silicon else 1)
        wanted, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        if (new := ~np.isin(wanted, self.memo, assume_unique=True)).any():
            rows = [
                self.make(
                    {space.axes[at].key: space.axes[at].values[digits[example, at]] for at in self.axes}
                )
                or (nan,) * self.width
                for example in first[new].tolist()
            ]
            places = np.searchsorted(self.memo, wanted[new])
            self.memo = np.insert(self.memo, places, wanted[new])
            self.rows = np.insert(self.rows.reshape(-1, self.width), places, np.array(rows), axis=0)
        built = self.rows.reshape(-1, self.width)[np.searchsorted(self.memo, wanted)[inverse]]
        return np.asarray(~np.isnan(built).all(axis=1)), built


class Table:
    """Columns of any machines of one space.

    >>> from hw import machine, space
    >>> values = {"array.x": [8, 16], "gbuf.capacity": ["1 B", "64 KiB"]}
    >>> few = space.parse(machine.load("edge_array"), values)
    >>> built, columns = Table(few).columns(np.arange(4))
    >>> built.tolist(), columns.mac_units.tolist()
    ([False, True, False, True], [128, 256])
    >>> bool(columns.area_mm2[1] == space.decode(few, 3).area_mm2())
    True
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        template, keys, self.nodes = space.template, [axis.key for axis in space.axes], []
        self.sound = not order_faults([outline(node) for node in template.nodes])
        shapes: dict[object, int] = {}
        for i, node in enumerate(template.nodes):
            own = [key for key in keys if key.rpartition(".")[0] == node.name]
            make, width = _maker(template, i, shapes)
            if isinstance(node, Memory):
                kind = keys.index(f"{node.name}.kind") if f"{node.name}.kind" in own else node.kind
                axes = _depends(space.axes, [*HEAD, *own])
                self.nodes.append(NodeColumns(axes, make, width, _depends(space.axes, SILICON), kind))
            else:
                silicon = [key for key in HEAD if key != "clock_mhz" and isinstance(node, MacUnit)]
                self.nodes.append(NodeColumns(_depends(space.axes, [*own, *silicon]), make, width))
        nested = NodeColumns(
            _depends(space.axes, [key for key in keys if key.rpartition(".")[2] in NESTING]),
            lambda chosen: _nested(apply(template, chosen)),
            1,
        )

        def whole(chosen: Mapping[str, Value]) -> Row:
            spec = apply(template, chosen)
            return spec.clock_mhz / 1e3, shapes.setdefault(
                tuple(getattr(spec, name) for name in OWN), len(shapes)
            )

        clocked = NodeColumns(
            _depends(space.axes, [*HEAD, *(key for key in keys if key.startswith("tiling."))]), whole, 2
        )
        self.whole = (nested, clocked)

    def digits(self, machines: Ints) -> Ints:
        """[n, axes] place of every machine on every axis."""
        found = np.empty((len(machines), len(self.space.axes)), np.int64)
        rest = np.asarray(machines, np.int64)
        for at in range(len(self.space.axes) - 1, -1, -1):
            rest, found[:, at] = np.divmod(rest, len(self.space.axes[at].values))
        return found

    def columns(self, machines: Ints) -> tuple[NDArray[np.bool_], Columns]:
        """Which of the machines can be built, and the columns of these."""
        digits = self.digits(machines)
        parts = [made.of(self.space, digits) for made in (*self.whole, *self.nodes)]
        built = np.logical_and.reduce([there for there, _ in parts]) & self.sound
        (clock, head), *nodes = [found[built].T for _, found in parts[1:]]
        template = self.space.template.nodes
        levels = [own[:-1] for node, own in zip(template, nodes, strict=True) if isinstance(node, Memory)]
        arrays = [own[:-1] for node, own in zip(template, nodes, strict=True) if isinstance(node, Array)]
        outside = [
            sum(isinstance(one, Memory) for one in template[:i])
            for i, node in enumerate(template)
            if isinstance(node, Array)
            for _ in node.dims
        ]
        sizes, multicast, reduce = (
            np.vstack([np.empty((0, int(built.sum()))), *(own[k::3] for own in arrays)]).T for k in range(3)
        )
        *of_levels, width_bits, separate, capacity, leak, area = (
            np.stack(column, axis=1) for column in zip(*levels, strict=True)
        )
        *of_lanes, lane_leak, lane_area, vector_leak, vector_area, word = nodes[-1][:-1]
        copies = [
            np.prod(sizes[:, [d for d, at in enumerate(outside) if at <= v]], axis=1)
            for v in range(len(levels) + 1)
        ]

        def total(of_levels: Floats, of_lane: Floats, of_vector: Floats) -> Floats:
            """As `Arch` adds up, level by level."""
            found = 0 + of_levels[:, 0] * copies[0]
            for v in range(1, len(levels)):
                found = found + of_levels[:, v] * copies[v]
            return np.asarray(found + of_lane * copies[-1] + of_vector)

        priced, paced = (
            dict(zip(fields_of(kind, *COUNTED), own, strict=True))
            for kind, own in ((Level, of_levels), (Compute, of_lanes))
        )
        return built, Columns(
            np.array(outside, np.int64),
            priced,
            paced,
            width_bits.astype(np.int64),
            separate.astype(bool),
            capacity[:, 0],
            sizes.astype(np.int64),
            np.stack([multicast, reduce], axis=2).astype(bool),
            clock,
            word.astype(np.int64),
            total(leak, lane_leak, vector_leak),
            total(area, lane_area, vector_area),
            np.stack([head, *(own[-1] for own in nodes)], axis=1).astype(np.int64),
        )


def _depends(axes: Sequence[Axis], fields: Collection[str]) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(axes) if axis.key in fields)


def _nested(spec: Machine) -> Row:
    return () if nesting_faults(spec.nodes) else (1.0,)


def _maker(
    template: Machine, i: int, shapes: dict[object, int]
) -> tuple[Callable[[Mapping[str, Value]], Row], int]:
    """What makes the numbers of node i from the values that it depends on, and how many there are. The last
    one is of its shape, as far as they are known.
    """
    node = template.nodes[i]
    of_level, of_lane = (fields_of(kind, *COUNTED) for kind in (Level, Compute))
    width = (
        len(of_level) + 6
        if isinstance(node, Memory)
        else 3 * len(node.dims) + 1
        if isinstance(node, Array)
        else len(of_lane) + 6
    )

    def shape(of: object) -> int:
        return shapes.setdefault(of, len(shapes))

    nodes: dict[tuple[Value, ...], Node] = {}

    def make(chosen: Mapping[str, Value]) -> Row:
        own_fields = {key: value for key, value in chosen.items() if "." in key}
        head: dict[str, Any] = {key: value for key, value in chosen.items() if "." not in key}
        if (own_key := tuple(own_fields.values())) not in nodes:
            nodes[own_key] = apply(template, own_fields).nodes[i]
        spec, own = replace(template, **head), nodes[own_key]
        if contradictions(spec, own, i == 0):
            return ()
        try:
            return numbers(spec, own)
        except ComponentError:
            return ()

    def numbers(spec: Machine, own: Node) -> Row:
        if isinstance(own, Memory):
            at = level_of(spec, own, i == 0)
            capacity = inf if at.capacity_bits is None else float(at.capacity_bits)
            return (
                *counted(at, of_level),
                at.width_bits,
                at.ports == "separate",
                capacity,
                at.leak_mw,
                at.area_mm2,
                shape(structure_of(at)),
            )
        if isinstance(own, Array):
            over = fanout_of(own, 0)
            sizes = [
                float(x)
                for (_, size), *flags in zip(over.dims, over.multicast, over.reduce, strict=True)
                for x in (size, *flags)
            ]
            return *sizes, shape(structure_of(over))
        assert isinstance(own, MacUnit)
        c, word = compute_of(spec, own), word_bits_of(spec, own)
        silicon = c.leak_mw, c.area_mm2, c.vector_leak_mw, c.vector_area_mm2
        return *counted(c, of_lane), *silicon, word, shape((structure_of(c), word))

    def counted(built: Level | Compute, names: Sequence[str]) -> Row:
        return tuple(nan if (value := getattr(built, name)) is None else value for name in names)

    return make, width
