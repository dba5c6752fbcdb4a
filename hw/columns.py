"""Many machines of a space as columns, one row per machine. Bounds read them; the numbers equal those of each
machine's `Arch`.

A node is built once per combination of its own fields and the machine's, however many machines share it.
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
    OPS_PER_MAC,
    ROLES,
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
    Stored,
    family_of,
    fields_of,
)
from hw.component import (
    ON_CHIP,
    ComponentError,
    compute_of,
    contradictions,
    fanout_of,
    least_vdd_of,
    level_of,
    nesting_faults,
    order_faults,
    outline,
    word_bits_of,
)
from hw.space import HEAD, Axis, Space, Value, apply
from hw.voltage import LEAST, STEPS_PER_V
from workloads.arrays import Floats, Ints

# fields of memories and arrays that decide how nodes may be nested (nesting_faults)
NESTING = ("kind", "along", "systolic", "hop_pj", "endpoint_pj", *LAYOUT_FIELDS)
# roles of the fields of Level and Compute that have a column each
COLUMN_ROLES: tuple[FieldRole, ...] = ("price", "rate")
# fields of Arch that are part of a machine's family; word_bits is part of the family of the compute instead
FAMILY_FIELDS = tuple(name for name in fields_of(Arch, "structure", "tiles") if name != "word_bits")
TECHNOLOGY = ("node_nm", "cell", "vdd")  # fields of Machine that change memories of the kinds ON_CHIP alone


@dataclass(frozen=True, slots=True)
class Columns:
    """Numbers of n machines of one space, with V levels and D array dimensions in all. Rows are machines."""

    # [D, V] whether PEs along a dimension stand inside of one instance of a level; the same for all machines
    below: NDArray[np.bool_]
    # [D, V] the same, or all dimensions for a level of which PEs share instances (`Fanout.shared`)
    around: NDArray[np.bool_]
    gated: NDArray[np.bool_]  # [roles] whether zeros of operands of a role are gated (`Compute.gates`)
    formats: tuple[tuple[Stored, ...], ...]  # how each level stores tensors with zeros (`Level.formats`)
    levels: Mapping[str, Floats]  # field of Level (price or rate) -> [n, V]; NaN where the rate is None
    compute: Mapping[str, Floats]  # field of Compute (price or rate) -> [n]; NaN where the rate is None
    width_bits: Ints  # [n, V]
    # [n, V, roles] bits of an element by role, in the order of ROLES (`Level.bits`); 0: as elsewhere
    elem_bits: Ints
    separate: NDArray[np.bool_]  # [n, V] whether reads and writes have separate ports
    latency_ns: Floats  # [n, V] from a request to its first word
    # [n, V, roles] where a level says which port serves what: the port of reads of inputs, of writes of
    # outputs, else -1; the rate of that port over the level's
    own_port: Ints
    port_times: Floats
    capacity_bits: Floats  # [n, V] inf where unbounded
    sizes: Ints  # [n, D] PEs along a dimension
    # [n, D, 2] whether reads are multicast along it, and whether writes are reduced
    shares: NDArray[np.bool_]
    lockstep: NDArray[np.bool_]  # [n] whether PEs step through operands in N:M together (`Compute.lockstep`)
    clock_ghz: Floats  # [n]
    word_bits: Ints  # [n]
    leak_mw: Floats  # [n] of all instances
    area_mm2: Floats  # [n] of all instances
    # [n, 1 + nodes] numbers of the machine's family and of each node's: equal where two machines are of one
    # family (`Arch.family`)
    family: Ints

    @property
    def mac_units(self) -> Ints:
        """[n] MAC units of each machine that has one compute."""
        return np.asarray(self.sizes.prod(axis=1), dtype=np.int64)

    @property
    def structure(self) -> Floats:
        """[n, .] numbers that are equal where two machines have the same structure (`Arch.structure`)."""
        return np.column_stack([self.family, self.capacity_bits, self.sizes])

    @property
    def peak_tops(self) -> Floats:
        """[n] `Arch.peak_tops` of each machine that has one compute."""
        return np.asarray(
            OPS_PER_MAC * (self.mac_units * self.compute["ops_per_cycle"] * self.clock_ghz) / 1e3
        )

    def take(self, rows: Ints) -> Columns:
        """Returns the columns of some of the machines, given by row."""
        return _combined([self], lambda some: some[0][rows])

    def column(self, name: str) -> NDArray[Any]:
        """Returns the column of that name: a field of Level or Compute (price or rate), or an attribute of
        Columns.
        """
        for group in (self.levels, self.compute):
            if name in group:
                return group[name]
        return np.asarray(getattr(self, name))

    def column_at(self, slot: Slot) -> Floats:
        """Returns [n], the column of a price or rate. Raises KeyError for nodes without such columns."""
        return (
            self.compute[slot.field]
            if slot.nodes == "compute"
            else {"levels": self.levels}[slot.nodes][slot.field][:, slot.number]
        )


def group_equal_rows(rows: NDArray[Any]) -> tuple[Ints, Ints]:
    """Groups equal rows of [n, k]. Returns first (index of the first row of each group) and which ([n], group
    of each row).

    >>> first, which = group_equal_rows(np.array([[1, 2], [3, 2], [1, 2]]))
    >>> first.tolist(), which.tolist()
    ([0, 1], [0, 1, 0])
    """
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        if (column != column[:1]).any():
            values, value_index = np.unique(column, return_inverse=True)
            code = np.unique(code * len(values) + value_index, return_inverse=True)[1]
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return first, which


def concatenated(groups: Sequence[Columns]) -> Columns:
    """Returns the columns of several groups of machines of one space, one group after the other."""
    return _combined(groups, np.concatenate)


def _combined(groups: Sequence[Columns], combine: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> Columns:
    """Returns Columns in which each array is `combine` of the list of that array in all groups; `below`,
    `around`, `gated` and `formats`, which are the same in all, stay.
    """
    first, names = groups[0], [one.name for one in fields(Columns)[4:]]
    changes: dict[str, Any] = {
        name: combine([getattr(one, name) for one in groups])
        for name in names
        if name not in ("levels", "compute")
    }
    for kind in ("levels", "compute"):
        changes[kind] = {
            name: combine([getattr(one, kind)[name] for one in groups]) for name in getattr(first, kind)
        }
    return replace(first, **changes)


VOLTS = tuple(step / STEPS_PER_V for step in range(3 * STEPS_PER_V))  # that `vdd: least` may mean
Row = tuple[float, ...]  # numbers of one node; empty: the node cannot be built


@dataclass(slots=True)
class NodeColumns:
    """Numbers of one node, for all combinations of its fields seen so far."""

    axes: tuple[int, ...]  # indices of the space's axes that the node depends on
    make: Callable[[Mapping[str, Value]], Row]  # returns the node's numbers from the values on these axes
    width: int  # how many numbers the node has
    technology: tuple[int, ...] = ()  # those of `axes` that matter only where the memory is on chip
    kind: int | str = "sram"  # the memory's kind; an int: index of the axis that sets it
    # codes of the combinations seen, in ascending order
    codes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    # [combinations, width] numbers of each combination in `codes`
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def numbers_of(self, space: Space, digits: Ints) -> tuple[NDArray[np.bool_], Floats]:
        """Returns [n] whether the node of each machine can be built, and [n, width] its numbers, NaN where
        not. digits: [n, axes], as `Table.digits` returns them.
        """
        # mixed-radix number of the values on the node's axes; those that matter on chip only are else 0
        code = np.zeros(len(digits), np.int64)
        on_chip = (
            np.array([value in ON_CHIP for value in space.axes[self.kind].values])[digits[:, self.kind]]
            if isinstance(self.kind, int)
            else self.kind in ON_CHIP
        )
        for axis in self.axes:
            code = code * len(space.axes[axis].values) + digits[:, axis] * (
                on_chip if axis in self.technology else 1
            )
        wanted, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        if (new := ~np.isin(wanted, self.codes, assume_unique=True)).any():
            rows = [
                self.make(
                    {
                        space.axes[axis].key: space.axes[axis].values[digits[example, axis]]
                        for axis in self.axes
                    }
                )
                or (nan,) * self.width
                for example in first[new].tolist()
            ]
            insert_at = np.searchsorted(self.codes, wanted[new])
            self.codes = np.insert(self.codes, insert_at, wanted[new])
            self.rows = np.insert(self.rows.reshape(-1, self.width), insert_at, np.array(rows), axis=0)
        found = self.rows.reshape(-1, self.width)[np.searchsorted(self.codes, wanted)[inverse]]
        return np.asarray(~np.isnan(found).all(axis=1)), found


class Table:
    """Makes the columns of any machines of one space.

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
        self.least: list[NodeColumns] = []  # of each node the least voltage, where machines have it
        self.resolved = _with_all_volts(space)  # the space in which every machine has a voltage in numbers
        space = self.resolved
        template, keys, self.nodes = space.template, [axis.key for axis in space.axes], []
        gives_vdd = template.vdd is not None or "vdd" in keys
        # False: the template's order of nodes is faulty, so that no machine can be built
        self.sound = not any(order_faults([outline(node) for node in template.nodes]))
        families: dict[object, int] = {}
        for i, node in enumerate(template.nodes):
            own_keys = [key for key in keys if key.rpartition(".")[0] == node.name]
            make, width = _maker(template, i, families)
            if self.resolved is not self.space and not isinstance(node, Array):
                by = _depends(space.axes, ["clock_mhz", "node_nm", "cell", *own_keys])
                self.least.append(NodeColumns(by, _made_by(template, i, _least_row), 1))
            if isinstance(node, Memory):
                kind = keys.index(f"{node.name}.kind") if f"{node.name}.kind" in own_keys else node.kind
                kind = "sram" if node.table else kind  # which sees the technology, too
                axes = _depends(space.axes, [*HEAD, *own_keys])
                self.nodes.append(NodeColumns(axes, make, width, _depends(space.axes, TECHNOLOGY), kind))
            else:
                # without a supply voltage a MAC unit has no highest clock
                timeless = () if gives_vdd else ("clock_mhz",)
                silicon = [key for key in HEAD if key not in timeless and isinstance(node, MacUnit)]
                self.nodes.append(NodeColumns(_depends(space.axes, [*own_keys, *silicon]), make, width))
        nesting = NodeColumns(
            _depends(space.axes, [key for key in keys if key.rpartition(".")[2] in NESTING]),
            lambda chosen: _nesting_row(apply(template, chosen)),
            1,
        )

        def machine_columns(chosen: Mapping[str, Value]) -> Row:
            spec = apply(template, chosen)
            return spec.clock_mhz / 1e3, families.setdefault(
                tuple(getattr(spec, name) for name in FAMILY_FIELDS), len(families)
            )

        clock_and_family = NodeColumns(
            _depends(space.axes, [*HEAD, *(key for key in keys if key.startswith("tiling."))]),
            machine_columns,
            2,
        )
        self.machine_columns = (nesting, clock_and_family)

    def digits(self, machines: Ints) -> Ints:
        """Returns [n, axes], the index of each machine's value on every axis."""
        found = np.empty((len(machines), len(self.space.axes)), np.int64)
        rest = np.asarray(machines, np.int64)
        for axis in range(len(self.space.axes) - 1, -1, -1):
            rest, found[:, axis] = np.divmod(rest, len(self.space.axes[axis].values))
        return found

    def _with_voltage(self, digits: Ints) -> Ints:
        """Returns the digits in the space `resolved`: `least` is the highest of what the nodes of a machine
        need each. A node that meets the clock at no voltage cannot be built at that of the others either.
        """
        if self.resolved is self.space:
            return digits
        (at,) = _depends(self.resolved.axes, ["vdd"])
        if at == digits.shape[1]:  # all machines have `least`, which is then no axis of the study
            digits = np.column_stack([digits, np.zeros(len(digits), np.int64)])
            is_least = np.ones(len(digits), np.bool_)
        else:
            is_least = np.array([volts == LEAST for volts in self.space.axes[at].values])[digits[:, at]]
        found = [one.numbers_of(self.resolved, digits) for one in self.least]
        volts = np.max([np.where(is_met, own[:, 0], 0) for is_met, own in found], axis=0)
        steps = np.round(volts * STEPS_PER_V).astype(np.int64)
        digits[:, at] = np.where(is_least, steps, digits[:, at] + len(VOLTS))
        return digits

    def columns(self, machines: Ints) -> tuple[NDArray[np.bool_], Columns]:
        """Returns [n] whether each machine can be built, and the columns of those that can."""
        digits = self._with_voltage(self.digits(machines))
        parts = [
            node_columns.numbers_of(self.resolved, digits)
            for node_columns in (*self.machine_columns, *self.nodes)
        ]
        built = np.logical_and.reduce([is_buildable for is_buildable, _ in parts]) & self.sound
        (clock, machine_family), *nodes = [found[built].T for _, found in parts[1:]]
        template = self.space.template.nodes
        # without the last number of a node, its family; of an array: size, multicast, reduce per dimension
        levels = [own[:-1] for node, own in zip(template, nodes, strict=True) if isinstance(node, Memory)]
        arrays = [own[:-1] for node, own in zip(template, nodes, strict=True) if isinstance(node, Array)]
        gates = next((node.gates for node in template if isinstance(node, MacUnit)), ())
        memories = [(i, node) for i, node in enumerate(template) if isinstance(node, Memory)]
        below = np.array(
            [
                [at < i or dim in memory.along for at, memory in memories]
                for i, node in enumerate(template)
                if isinstance(node, Array)
                for dim in node.dims
            ],
            np.bool_,
        ).reshape(-1, len(memories))
        sizes, multicast, reduce = (
            np.vstack([np.empty((0, int(built.sum()))), *(own[k::3] for own in arrays)]).T for k in range(3)
        )
        *of_levels, width_bits, separate, latency_ns, capacity, leak, area = (
            np.stack(column, axis=1) for column in zip(*levels, strict=True)
        )
        by_role = [of_levels[i - 3 * len(ROLES) :][: len(ROLES)] for i in (0, len(ROLES), 2 * len(ROLES))]
        elem_bits, own_port, port_times = (np.stack(columns, axis=2) for columns in by_role)
        of_levels = of_levels[: -3 * len(ROLES)]
        *of_mac_units, mac_unit_leak, mac_unit_area, vector_leak, vector_area, word, lockstep = nodes[-1][:-1]
        instances = [
            np.prod(sizes[:, ~below[:, v]] if v < len(levels) else sizes, axis=1)
            for v in range(len(levels) + 1)
        ]

        def total(per_level: Floats, per_mac_unit: Floats, of_vector_unit: Floats) -> Floats:
            """Returns totals over all instances, summed in the order of `Arch.area_mm2` and `Arch.leak_mw`,
            so that they are equal to the last bit.
            """
            summed = 0 + per_level[:, 0] * instances[0]
            for v in range(1, len(levels)):
                summed = summed + per_level[:, v] * instances[v]
            return np.asarray(summed + per_mac_unit * instances[-1] + of_vector_unit)

        level_columns, compute_columns = (
            dict(zip(fields_of(kind, *COLUMN_ROLES), own, strict=True))
            for kind, own in ((Level, of_levels), (Compute, of_mac_units))
        )
        return built, Columns(
            below,
            below | np.array([bool(memory.along) for _, memory in memories]),
            np.array([of in gates for of in ROLES]),
            tuple(memory.formats for _, memory in memories),
            level_columns,
            compute_columns,
            width_bits.astype(np.int64),
            elem_bits.astype(np.int64),
            separate.astype(bool),
            latency_ns,
            own_port.astype(np.int64),
            port_times,
            capacity,
            sizes.astype(np.int64),
            np.stack([multicast, reduce], axis=2).astype(bool),
            lockstep.astype(bool),
            clock,
            word.astype(np.int64),
            total(leak, mac_unit_leak, vector_leak),
            total(area, mac_unit_area, vector_area),
            np.stack([machine_family, *(own[-1] for own in nodes)], axis=1).astype(np.int64),
        )


def _with_all_volts(space: Space) -> Space:
    """Returns the space with an axis vdd that begins with VOLTS, all voltages that `least` may mean, and then
    has the values of the study; the space itself where no machine has `least`.
    """
    values = {axis.key: axis.values for axis in space.axes}
    if LEAST not in values.get("vdd", (space.template.vdd,)):
        return space
    values["vdd"] = (*VOLTS, *values.get("vdd", ()))
    return replace(space, axes=tuple(Axis(key, own) for key, own in values.items()))


def _depends(axes: Sequence[Axis], fields: Collection[str]) -> tuple[int, ...]:
    return tuple(i for i, axis in enumerate(axes) if axis.key in fields)


def _nesting_row(spec: Machine) -> Row:
    return () if any(nesting_faults(spec.nodes)) else (1.0,)


def _maker(
    template: Machine, i: int, families: dict[object, int]
) -> tuple[Callable[[Mapping[str, Value]], Row], int]:
    """Returns the function that makes the numbers of node i from the values it depends on, and how many
    numbers it makes.

    The last number is the node's family: an index into `families`, which grows as new ones are met.
    """
    node = template.nodes[i]
    level_fields, compute_fields = (fields_of(kind, *COLUMN_ROLES) for kind in (Level, Compute))
    width = (
        len(level_fields) + 3 * len(ROLES) + 7
        if isinstance(node, Memory)
        else 3 * len(node.dims) + 1
        if isinstance(node, Array)
        else len(compute_fields) + 7
    )

    def family(of: object) -> int:
        return families.setdefault(of, len(families))

    def numbers(spec: Machine, own_node: Node) -> Row:
        if isinstance(own_node, Memory):
            level = level_of(spec, own_node, i == 0)
            capacity = inf if level.capacity_bits is None else float(level.capacity_bits)
            ports = [level.port(role, "write" if role == "output" else "read") for role in ROLES]
            names = list(dict.fromkeys(name for name, _ in ports))
            numbered = not isinstance(level.ports, str)
            return (
                *numbers_in(level, level_fields),
                *(level.elem_bits(role, 0) for role in ROLES),
                *(names.index(name) if numbered else -1 for name, _ in ports),
                *(times for _, times in ports),
                level.width_bits,
                level.ports == "separate",
                level.latency_ns,
                capacity,
                level.leak_mw,
                level.area_mm2,
                family(family_of(level)),
            )
        if isinstance(own_node, Array):
            inside = [one for one in spec.nodes[i:] if isinstance(one, Memory)]
            fanout = fanout_of(own_node, 0, inside)
            sizes = [
                float(x)
                for (_, size), *flags in zip(fanout.dims, fanout.multicast, fanout.reduce, strict=True)
                for x in (size, *flags)
            ]
            return *sizes, family(family_of(fanout))
        assert isinstance(own_node, MacUnit)
        c, word = compute_of(spec, own_node), word_bits_of(spec, own_node)
        silicon = c.leak_mw, c.area_mm2, c.vector_leak_mw, c.vector_area_mm2
        return *numbers_in(c, compute_fields), *silicon, word, c.lockstep, family((family_of(c), word))

    def numbers_in(built: Level | Compute, names: Sequence[str]) -> Row:
        return tuple(nan if (value := getattr(built, name)) is None else value for name in names)

    return _made_by(template, i, numbers), width


def _made_by(
    template: Machine, i: int, numbers: Callable[[Machine, Node], Row]
) -> Callable[[Mapping[str, Value]], Row]:
    """Returns the function that gives `numbers` of node i from the values that it depends on; an empty row
    where the node cannot be built.
    """
    nodes: dict[tuple[Value, ...], Node] = {}

    def make(chosen: Mapping[str, Value]) -> Row:
        own_fields = {key: value for key, value in chosen.items() if "." in key}
        head: dict[str, Any] = {key: value for key, value in chosen.items() if "." not in key}
        if (own_key := tuple(own_fields.values())) not in nodes:
            nodes[own_key] = apply(template, own_fields).nodes[i]
        spec, own_node = replace(template, **head), nodes[own_key]
        if contradictions(spec, own_node, i == 0):
            return ()
        try:
            return numbers(spec, own_node)
        except ComponentError:
            return ()

    return make


def _least_row(spec: Machine, node: Node) -> Row:
    """Returns the least voltage of a node, which is no array."""
    assert not isinstance(node, Array)
    return (least_vdd_of(spec, node),)
