"""Machines as values: Machine, the spec as a file or a study says it, and Arch, the numbers that the model
reads. component.py turns one into the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf, prod
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

SIZE = re.compile(r"^\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z/]+2?)\s*$")
SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
RATE_UNITS = {"MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3}
# of plain numbers, by the end of their key: one for example, and the units that people write
PLAIN_UNITS: dict[str, tuple[str, dict[str, float]]] = {
    "mhz": ("500", {"kHz": 1e-3, "MHz": 1.0, "GHz": 1e3}),
    "nm": ("32", {"nm": 1.0, "um": 1e3}),
    "pj": ("0.5", {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12}),
    "ns": ("2.5", {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}),
    "mw": ("0.5", {"uW": 1e-3, "mW": 1.0, "W": 1e3}),
    "mm2": ("0.5", {"um2": 1e-6, "mm2": 1.0}),
}
CLOSED = ConfigDict(extra="forbid")


def read_bytes(value: object) -> int:
    """Bytes of "128 KiB". A plain number is refused: it could be words, bits or KiB."""
    match = SIZE.match(value) if isinstance(value, str) else None
    if not match or match[2] not in SIZE_UNITS:
        raise ValueError('is not a size; write a number with B, KiB, MiB or GiB, e.g. "128 KiB"')
    size = float(match[1]) * SIZE_UNITS[match[2]]
    if size <= 0 or size != int(size):
        raise ValueError("must be a whole number of bytes, at least 1; raise it")
    return int(size)


def read_rate(value: object) -> float:
    """GB/s of "12.8 GB/s"."""
    match = SIZE.match(value) if isinstance(value, str) else None
    if not match or match[2] not in RATE_UNITS:
        raise ValueError(
            'is no bandwidth; write a number with MB/s, GB/s or TB/s, e.g. "12.8 GB/s", or use '
            "actions_per_cycle"
        )
    if float(match[1]) <= 0:
        raise ValueError("must be above 0; raise it, or leave it out to take the table's")
    return float(match[1]) * RATE_UNITS[match[2]]


def plain_number(key: str, text: str) -> str:
    """A number with a unit as the plain number of a key; "" where the key has no such unit.

    >>> plain_number("clock_mhz", "0.4 GHz"), plain_number("latency_ns", "12 ms")
    ('400', '12000000')
    >>> plain_number("clock_mhz", "fast")
    ''
    """
    match, (_, units) = SIZE.match(text), PLAIN_UNITS.get(key.rpartition("_")[2], ("", dict[str, float]()))
    return f"{float(match[1]) * units[match[2]]:.12g}" if match and match[2] in units else ""


def _infinite(value: object) -> object:
    return inf if value in ("inf", ".inf") else value


def read_list(value: object) -> object:
    """Checks that a value is a list, so that a text is not taken letter by letter. Raises ValueError."""
    if isinstance(value, list | tuple):
        return value
    raise ValueError("is no list; write it in brackets, e.g. [None, DimN]")


def read_roles(value: object) -> tuple[str, ...]:
    """Parts of an einsum, in the order of ROLES."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"is no list of roles; write e.g. [{', '.join(ROLES)}]")
    if strange := [role for role in value if role not in ROLES]:
        raise ValueError(f"names {strange[0]}, which is no part of an einsum; use {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in value)


def read_entry(value: object) -> int | str:
    """One dimension of a smallest tile."""
    if (type(value) is int and value > 0) or value in WORDS:
        return value
    raise ValueError(f"is no tile size; write a whole number above 0, or {', '.join(WORDS)}")


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Bytes = Annotated[
    int,
    BeforeValidator(read_bytes),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(B|KiB|MiB|GiB)$"}),
]
Rate = Annotated[
    float,
    BeforeValidator(read_rate),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(MB/s|GB/s|TB/s)$"}),
]
Actions = Annotated[float, BeforeValidator(_infinite), Field(gt=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(gt=0, strict=True)]
Whole = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Cell = Literal["lop", "hp"]
MemoryKind = Literal["sram", "ddr3", "ddr4", "lpddr4", "lpddr5", "gddr5", "gddr6", "hbm2", "hbm2e", "custom"]
Still = Literal["os", "ws", "is"]
Overlap = Literal["buffered", "free"]
Rim = Literal["corners", "edge"]
Source = Literal["next_level", "same_level"]
ComputeKind = Literal["int4", "int8", "int16", "int32", "fp16", "bf16", "fp32", "custom"]
Role = Literal["input", "weight", "output"]
Label = Literal["None", "DimN", "DimNC", "DimNH", "DimNW", "DimNHW", "DimNCH", "DimNCW"]
ROLES: tuple[str, ...] = get_args(Role)
# array constants; rows or columns of the kernel; the whole dimension
WORDS = ("pes", "macs", "vector", "kernel", "full")
Roles = Annotated[
    tuple[Role, ...],
    BeforeValidator(read_roles),
    WithJsonSchema({"type": "array", "items": {"enum": [*ROLES]}, "minItems": 1}),
]
Entry = Annotated[
    int | str,
    BeforeValidator(read_entry),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [*WORDS]}]}),
]

FieldRole = Literal[
    "structure",
    "size",
    "price",
    "rate",
    "leakage",
    "clock",
    "area",
    "label",
    "layout",
    "network",
    "tiles",
    "nodes",
]
# machines that differ in these alone share answers
COSTS: tuple[FieldRole, ...] = ("price", "rate", "leakage", "clock")


def role(of: FieldRole, says: str = "") -> dict[str, str]:
    """Metadata of a field of Level, Fanout, Compute, Access, Arch: what it is to answers. All that strips,
    varies, compares or tabulates machines asks for roles (`slots`) and names no field.

    structure: which mappings there are, and what they count; size: capacities, sizes of arrays price: energy
    of one action; rate: actions per cycle, None where there is no such unit (which is structure) leakage:
    power of an instance; clock: cycles per ns; area: silicon layout, network: what costs beyond the words
    that mappings move; tiles: what tile optimizers alone read label: names and remarks, in no cost; nodes:
    the nodes themselves says: the column of the table `prices`, as users read it.
    """
    return {"role": of, "says": says}


def says(meaning: str) -> dict[str, str]:
    """Metadata of a key of machine files: what `dse list keys` says of it."""
    return {"says": meaning}


@dataclass(frozen=True, slots=True)
class Memory:
    """A storage level. Numbers left out come from the table of its kind; custom: all of them are given here.

    capacity in bytes; bandwidth in GB/s, or actions_per_cycle of width_bits each. banks (sram): arrays that
    split the capacity and work side by side; channels (DRAM): their bandwidths and background powers add up.
    cycle_ns (sram): least time between two accesses of an array; slow: an array slower than the clock takes
    whole cycles, or makes the machine infeasible. leak_mw, area_mm2: of the whole level, banks and channels
    included. double_buffer: the next tile is filled while this one is worked on, into room of its own; else
    work inside stops while tiles are exchanged. may_keep: which parts of an einsum may stand there
    (`nest.role`): the first input, its other inputs (weight), the output.

    Where these are given, layouts are felt (`Access`). burst: bytes that move at once, a line. partial_write
    rmw: lines written in part are read before. row, row_banks, row_pj, row_ns: DRAM rows, banks (which take
    turns every row_interleave bytes, default: a row), energy of opening one, and time from one opening to the
    next in a bank. bank_map (sram): how words lie over the banks. dma_ns: time of a descriptor, of dma_queues
    side by side, each of runs that dma_strides repeat. prefetch_lines: lines that a miss brings;
    prefetch_run, prefetch_line: misses per run and line as measured; miss_ns: time of a miss.
    """

    name: Annotated[Name, Field(alias="memory")]
    width_bits: Count
    kind: MemoryKind = "sram"
    capacity: Bytes | None = None
    banks: Count = 1
    channels: Count = 1
    bandwidth: Rate | None = None
    actions_per_cycle: Actions | None = None
    read_pj: Cost | None = field(
        default=None, metadata=says("energy of one read of width_bits; none: the table's")
    )
    write_pj: Cost | None = field(
        default=None, metadata=says("energy of one write of width_bits; none: the table's")
    )
    leak_mw: Cost | None = None
    area_mm2: Cost | None = None
    cycle_ns: Positive | None = None
    ports: Literal["shared", "separate"] = "shared"
    double_buffer: Flag = False
    bypass: Flag | None = None
    skip_first_read: Flag = True
    slow: Literal["divide", "infeasible"] = "divide"
    may_keep: Roles = ROLES  # type: ignore[assignment]
    burst: Bytes | None = None
    partial_write: Literal["masked", "rmw"] = "masked"
    row: Bytes | None = None
    row_banks: Count | None = None
    row_interleave: Bytes | None = None
    row_pj: Cost | None = field(default=None, metadata=says("energy of opening a row"))
    row_ns: Cost | None = None
    bank_map: Literal["word", "block", "xor"] | None = None
    dma_ns: Cost | None = None
    dma_queues: Count | None = None
    dma_strides: Whole | None = None
    prefetch_lines: Count | None = None
    prefetch_run: Cost | None = None
    prefetch_line: Cost | None = None
    miss_ns: Cost | None = None

    __pydantic_config__ = CLOSED


@dataclass(frozen=True, slots=True)
class Array:
    """Copies of all that follows. dims: size per dimension; multicast, reduce: all dimensions, none, or those
    named.

    systolic: a systolic array of two dimensions, rows first, and what stays still in it: outputs, weights or
    inputs. hop_pj: a mesh of two dimensions, energy per bit and link; injected_at: where on it the level
    outside stands. multicast_from: whence on it PEs take a word that many want: next_level: all from there,
    along one tree; same_level: each from the nearest lane that has it, the first from there. endpoint_pj:
    energy per bit that a lane takes or gives, from anywhere.
    """

    name: Annotated[Name, Field(alias="array")]
    dims: Annotated[Mapping[Name, Count], Field(min_length=1)]
    multicast: Flag | tuple[str, ...] = True
    reduce: Flag | tuple[str, ...] = True
    systolic: Still | None = None
    hop_pj: Cost = field(
        default=0.0, metadata=says("a mesh of two dimensions, rows first: energy of one bit over one link")
    )
    endpoint_pj: Cost = field(
        default=0.0, metadata=says("energy of one bit that a PE takes from the network, or gives to it")
    )
    injected_at: Rim = "corners"
    multicast_from: Source = "next_level"

    __pydantic_config__ = CLOSED


@dataclass(frozen=True, slots=True)
class MacUnit:
    """What computes, the innermost node. Numbers left out come from the table of its kind; custom: all of
    them are given here.

    vector_lanes: the machine has one vector unit of so many lanes of vector_kind (default: kind), which does
    all that is no multiply-accumulate, one operation per lane and cycle; alu_pj, its area and leakage are
    then those of vector_kind. 0: the lanes of the array do it. merge_pj: of an addition of partial sums that
    lanes hold; left out: that of a lane's other operation.
    """

    name: Annotated[Name, Field(alias="compute")]
    kind: ComputeKind
    ops_per_cycle: Positive = 1.0
    mac_pj: Cost | None = field(default=None, metadata=says("one multiply-accumulate; none: the table's"))
    alu_pj: Cost | None = field(default=None, metadata=says("one other operation; none: the table's"))
    merge_pj: Cost | None = field(
        default=None,
        metadata=says("adding a partial sum of one PE to another PE's; none: alu_pj of a MAC unit"),
    )
    leak_mw: Cost | None = None
    area_mm2: Cost | None = None
    vector_lanes: Annotated[int, Field(ge=0, strict=True)] = 0
    vector_kind: ComputeKind | None = None

    __pydantic_config__ = CLOSED


Node = Memory | Array | MacUnit


@dataclass(frozen=True, slots=True)
class Tiling:
    """What tile optimizers know of a machine beside its scratchpads and lanes; minima left out are those of
    hw/tiling.py.

    preference: which dimensions to cut, the first that fits is taken. minimum: smallest useful tile per
    operator and tensor. align: the innermost dimension is stored in multiples of it (0: as it is). pes, macs:
    output channels side by side, input channels that each reduces per step; left out: the array's. vector:
    channels at a time of what is no product; left out: the vector unit's lanes, or 8.
    """

    preference: Annotated[tuple[Label, ...], BeforeValidator(read_list), Field(min_length=1)] = get_args(
        Label
    )
    minimum: Mapping[str, Annotated[tuple[Entry, ...], BeforeValidator(read_list)]] = field(
        default_factory=dict, hash=False
    )
    align: Annotated[int, Field(ge=0, strict=True)] = 0
    pes: Count | None = None
    macs: Count | None = None
    vector: Count | None = None

    __pydantic_config__ = CLOSED


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine file, checked. nodes: outermost first, the compute last. word_bits left out: the bits of the
    compute kind.

    overlap buffered: fills overlap the work inside where a level double-buffers; free: they always do,
    without room for it.
    """

    name: str
    clock_mhz: Positive
    nodes: tuple[Node, ...] = ()
    node_nm: Positive | None = None
    cell: Cell = "lop"
    word_bits: Count | None = None
    overlap: Overlap = "buffered"
    tiling: Tiling = Tiling()

    __pydantic_config__ = CLOSED


@dataclass(frozen=True, slots=True)
class Access:
    """What a level says of its memory beyond words and bandwidth; layouts are felt there (docs/model.md,
    Layouts).

    line_bits: what moves at once (a line, a burst; of an SRAM its word). row_*: DRAM rows, banks, which take
    turns every granule_bits, energy and cycles of opening one. banks, bank_map: arrays of an SRAM that serve
    a word at a time each, of capacity_bits together; 0: not counted. rmw: a line that is partly written is
    read before. dma_*: descriptors, which name runs repeated by so many strides. prefetch_*: lines that a
    miss brings; misses per run and per line, where calibrated.
    """

    line_bits: int = field(metadata=role("layout"))
    row_bits: int = field(default=0, metadata=role("layout"))
    row_banks: int = field(default=1, metadata=role("layout"))
    granule_bits: int = field(default=0, metadata=role("layout"))
    row_pj: float = field(default=0.0, metadata=role("layout", "a level of rows: one row opened"))
    row_cycles: float = field(default=0.0, metadata=role("layout"))
    rmw: bool = field(default=False, metadata=role("layout"))
    banks: int = field(default=0, metadata=role("layout"))
    bank_map: str = field(default="word", metadata=role("layout"))
    capacity_bits: int = field(default=0, metadata=role("layout"))
    descriptor_cycles: float = field(default=0.0, metadata=role("layout"))
    dma_queues: int = field(default=1, metadata=role("layout"))
    dma_strides: int = field(default=0, metadata=role("layout"))
    prefetch_lines: int = field(default=0, metadata=role("layout"))
    prefetch_run: float | None = field(default=None, metadata=role("layout"))
    prefetch_line: float | None = field(default=None, metadata=role("layout"))
    miss_cycles: float = field(default=0.0, metadata=role("layout"))


LAYOUT_FIELDS = ("burst", "bank_map")  # fields of memories by which layouts are felt


@dataclass(frozen=True, slots=True)
class Level:
    """One storage level, per instance. Energies per action of width_bits; bandwidth in actions per cycle.

    capacity_bits None: unbounded. ports separate: reads and writes each have the bandwidth; shared: they add
    up. bypass: tensors may skip this level. skip_first_read False: the first read of an output element is
    paid here. leak_mw of a DRAM is its background power. access_cycles: clock cycles from one access of an
    array to the next, already in the bandwidth. may_keep: roles of the tensors that may stand here; where
    bypass is False, those must. access None: layouts cost nothing here.
    """

    name: str = field(metadata=role("structure"))
    capacity_bits: int | None = field(metadata=role("size"))
    width_bits: int = field(metadata=role("structure"))
    read_pj: float = field(metadata=role("price", "one read of width_bits"))
    write_pj: float = field(metadata=role("price", "one write of width_bits"))
    bandwidth: float = field(default=inf, metadata=role("rate"))
    ports: Literal["shared", "separate"] = field(default="shared", metadata=role("structure"))
    double_buffer: bool = field(default=False, metadata=role("structure"))
    bypass: bool = field(default=True, metadata=role("structure"))
    skip_first_read: bool = field(default=True, metadata=role("structure"))
    leak_mw: float = field(default=0.0, metadata=role("leakage"))
    area_mm2: float = field(default=0.0, metadata=role("area"))
    access_cycles: int = field(default=1, metadata=role("label"))
    may_keep: tuple[str, ...] = field(default=ROLES, metadata=role("structure"))
    access: Access | None = field(default=None, metadata=role("layout"))


@dataclass(frozen=True, slots=True)
class Fanout:
    """Parallel instances of all that lies inside. outside: number of levels outside of it (len(levels): above
    compute).

    dims: (name, size) of each dimension. multicast: one read serves all lanes that want the same element;
    reduce: lanes add their partial outputs on the way out. Both per dimension. systolic: what stays still in
    a systolic array of two dimensions, rows first: outputs, weights or inputs; "": data do not ripple
    through. hop_pj: per bit and link of a mesh, rows first; injected_at: where the level outside stands;
    multicast_from: whence a word comes that many PEs want. endpoint_pj: per bit at a lane. place: of a part
    of a mesh, per dimension its first lane and how many the whole mesh has.
    """

    name: str = field(metadata=role("structure"))
    outside: int = field(metadata=role("structure"))
    dims: tuple[tuple[str, int], ...] = field(metadata=role("size"))
    multicast: tuple[bool, ...] = field(metadata=role("structure"))
    reduce: tuple[bool, ...] = field(metadata=role("structure"))
    systolic: Still | Literal[""] = field(default="", metadata=role("structure"))
    hop_pj: float = field(default=0.0, metadata=role("network", "a network: one bit over one link"))
    endpoint_pj: float = field(
        default=0.0, metadata=role("network", "a network: one bit that a PE takes or gives")
    )
    injected_at: Rim = field(default="corners", metadata=role("structure"))
    multicast_from: Source = field(default="next_level", metadata=role("structure"))
    place: tuple[tuple[int, int], ...] = field(default=(), metadata=role("structure"))


@dataclass(frozen=True, slots=True)
class Compute:
    """One lane. mac_pj per multiply-accumulate, alu_pj per other operation; a copy costs none. merge_pj per
    partial sum of a lane that is added to another's.

    alu_per_cycle: other operations per clock cycle of the machine's one vector unit, whatever the array does;
    None: the lanes do them at ops_per_cycle. vector_leak_mw, vector_area_mm2: of that unit.
    """

    mac_pj: float = field(metadata=role("price", "MAC: one multiply-accumulate"))
    alu_pj: float = field(metadata=role("price", "MAC: one other operation"))
    ops_per_cycle: float = field(default=1.0, metadata=role("rate"))
    leak_mw: float = field(default=0.0, metadata=role("leakage"))
    area_mm2: float = field(default=0.0, metadata=role("area"))
    alu_per_cycle: float | None = field(default=None, metadata=role("rate"))
    vector_leak_mw: float = field(default=0.0, metadata=role("leakage"))
    vector_area_mm2: float = field(default=0.0, metadata=role("area"))
    merge_pj: float = field(
        default=0.0, metadata=role("price", "MAC: adding a partial sum of one PE to another PE's")
    )


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine. levels[0] is outermost and holds tensors whole; word_bits is the size of a tensor element
    that names none of its own.

    overlap free: every fill overlaps the work inside; buffered: those into levels that double-buffer.
    """

    name: str = field(metadata=role("label"))
    levels: tuple[Level, ...] = field(metadata=role("nodes"))
    fanouts: tuple[Fanout, ...] = field(metadata=role("nodes"))
    compute: Compute = field(metadata=role("nodes"))
    clock_ghz: float = field(metadata=role("clock"))
    word_bits: int = field(metadata=role("structure"))
    tiling: Tiling = field(default=Tiling(), metadata=role("tiles"))
    overlap: Overlap = field(default="buffered", metadata=role("structure"))

    def instances(self, outside: int) -> int:
        """Copies of what has `outside` levels outside of it: levels[outside], or the lanes for
        len(levels)."""
        return prod(size for f in self.fanouts if f.outside <= outside for _, size in f.dims)

    def ideal(self) -> Arch:
        """The machine without a word on lines, rows, banks and networks: layouts and hops cost nothing there,
        no mapping moves more or needs more room than here. It may take longer: tiles that sink there change
        more often.
        """
        return self.without("layout", "network") if self.layout_sensitive() else self

    def sizeless(self) -> Arch:
        """The machine without a word on capacities and sizes of arrays."""
        return self.without("size")

    def structure(self) -> Arch:
        """The machine without prices, rates and clock: what it shares with those that the same mappings
        fit."""
        return self.without(*COSTS, "area", "label")

    def unbounded(self) -> Arch:
        """The machine with all the room that tensors take at the outermost level: how much that is depends on
        no mapping (dse/sim/schedule/outermost.py).
        """
        outer = self.levels[0]
        return (
            self
            if outer.capacity_bits is None
            else replace(self, levels=(replace(outer, capacity_bits=None), *self.levels[1:]))
        )

    def layout_sensitive(self) -> bool:
        """Whether anything costs that mappers do not see: layouts, or networks."""
        return self.models_layout() or any(self.values(slots(self, "network")))

    def models_layout(self) -> bool:
        """Whether layouts are felt anywhere."""
        return bool(self.lined())

    def lined(self) -> frozenset[str]:
        """Names of the levels that describe lines, rows or banks."""
        return frozenset(level.name for level in self.levels if level.access)

    def without(self, *roles: FieldRole) -> Arch:
        """The machine with nothing said in fields of these roles: machines that differ in them alone become
        equal.
        """
        return self.changed(roles, _nothing)

    def changed(self, roles: Sequence[FieldRole], rule: Callable[[FieldRole, Any], Any]) -> Arch:
        """The machine with what a rule makes of every field of these roles, from its role and value."""
        return replace(
            changed(self, roles, rule),
            levels=tuple(changed(level, roles, rule) for level in self.levels),
            fanouts=tuple(changed(f, roles, rule) for f in self.fanouts),
            compute=changed(self.compute, roles, rule),
        )

    def values(self, at: Iterable[Slot]) -> list[Any]:
        """What stands in fields, in their order."""
        nodes = {"levels": self.levels, "fanouts": self.fanouts, "compute": (self.compute,), "": (self,)}
        return [getattr(nodes[one.nodes][one.number], one.field) for one in at]

    def with_values(self, at: Iterable[Slot], values: Iterable[Any]) -> Arch:
        """The machine with other values in some of its fields, in their order."""
        own: dict[tuple[str, int], dict[str, Any]] = {}
        for one, value in zip(at, values, strict=True):
            own.setdefault((one.nodes, one.number), {})[one.field] = value
        return replace(
            self,
            levels=tuple(replace(level, **own.get(("levels", v), {})) for v, level in enumerate(self.levels)),
            fanouts=tuple(replace(f, **own.get(("fanouts", i), {})) for i, f in enumerate(self.fanouts)),
            compute=replace(self.compute, **own.get(("compute", 0), {})),
            **own.get(("", 0), {}),
        )

    def area_mm2(self) -> float:
        """Silicon of all instances; DRAM has none of its own on the chip."""
        levels = sum(level.area_mm2 * self.instances(v) for v, level in enumerate(self.levels))
        return (
            levels + self.compute.area_mm2 * self.instances(len(self.levels)) + self.compute.vector_area_mm2
        )

    def leak_mw(self) -> float:
        """Static power of the whole machine in mW, all copies of levels and MAC units."""
        levels = sum(level.leak_mw * self.instances(v) for v, level in enumerate(self.levels))
        return levels + self.compute.leak_mw * self.instances(len(self.levels)) + self.compute.vector_leak_mw

    def slow_levels(self) -> tuple[str, ...]:
        """Levels whose arrays are slower than the clock, as `GBUF (2 cycles)`: their bandwidth is divided
        already.
        """
        return tuple(
            f"{level.name} ({level.access_cycles} cycles)" for level in self.levels if level.access_cycles > 1
        )


class Slot(NamedTuple):
    """A field of a machine. nodes: levels, fanouts, compute, or "" for the machine's own; number: of the
    node.
    """

    nodes: str
    number: int
    field: str


def fields_of(node: type, *roles: FieldRole) -> tuple[str, ...]:
    """Fields of a kind of node, in the order of these roles, then of declaration.

    Raises TypeError for a field without a role, which no comparison of machines would see.
    """
    return _fields_of(node, roles)


@lru_cache
def _fields_of(node: type, roles: tuple[FieldRole, ...]) -> tuple[str, ...]:
    if bare := [one.name for one in fields(node) if "role" not in one.metadata]:
        raise TypeError(f"{node.__name__}.{bare[0]} has no role; declare it with metadata=role(...)")
    return tuple(one.name for of in roles for one in fields(node) if one.metadata["role"] == of)


def slots(arch: Arch, *roles: FieldRole) -> tuple[Slot, ...]:
    """Fields of these roles: of levels, fanouts, what computes, the machine; of each in the order of
    `fields_of`.
    """
    kinds = (
        ("levels", tuple(map(type, arch.levels))),
        ("fanouts", tuple(map(type, arch.fanouts))),
        ("compute", (type(arch.compute),)),
        ("", (type(arch),)),
    )
    return _slots(kinds, roles)


@lru_cache(maxsize=1024)
def _slots(kinds: tuple[tuple[str, tuple[type, ...]], ...], roles: tuple[FieldRole, ...]) -> tuple[Slot, ...]:
    return tuple(
        Slot(nodes, number, name)
        for nodes, own in kinds
        for number, kind in enumerate(own)
        for name in fields_of(kind, *roles)
    )


Part = TypeVar("Part", Level, Fanout, Compute, Arch)


def changed(node: Part, roles: Sequence[FieldRole], rule: Callable[[FieldRole, Any], Any]) -> Part:
    """`Arch.changed` of one node's own fields."""
    return replace(
        node, **{name: rule(of, getattr(node, name)) for of in roles for name in fields_of(type(node), of)}
    )


def structure_of(node: Part) -> Part:
    """`Arch.structure` of one node's own fields."""
    return changed(node, (*COSTS, "area", "label"), _nothing)


def _nothing(of: FieldRole, value: Any) -> Any:
    """What stands in a field of which nothing is said. A rate stays apart from none."""
    if of in ("price", "leakage", "area", "network"):
        return 0.0
    if of in ("rate", "clock"):
        return None if value is None else 1.0
    if of == "size" and isinstance(value, tuple):
        return tuple((name, 1) for name, _ in value)
    return {"label": "", "tiles": Tiling()}.get(of)  # of a capacity, and of what layouts cost: None
