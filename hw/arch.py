"""The two forms of a machine: Machine is the checked content of a machine file or of one design of a study;
Arch is the numbers that the cost model reads. hw/component.py builds an Arch from a Machine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf, prod
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema

from hw.voltage import LEAST
from workloads.meant import FORMATS, STRUCTURED

SIZE = re.compile(r"^\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z/]+2?)\s*$")
SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
OPS_PER_MAC = 2  # operations in TOPS: a multiplication and an addition
RATE_UNITS = {"MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3}
# Units of keys that take plain numbers, by the last word of the key (clock_mhz: mhz): an example value, and
# the factor from each unit that users write to the unit of the key.
PLAIN_UNITS: dict[str, tuple[str, dict[str, float]]] = {
    "mhz": ("500", {"kHz": 1e-3, "MHz": 1.0, "GHz": 1e3}),
    "nm": ("32", {"nm": 1.0, "um": 1e3}),
    "pj": ("0.5", {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12}),
    "ns": ("2.5", {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}),
    "mw": ("0.5", {"uW": 1e-3, "mW": 1.0, "W": 1e3}),
    "mm2": ("0.5", {"um2": 1e-6, "mm2": 1.0}),
}
NO_OTHER_KEYS = ConfigDict(extra="forbid")


def read_bytes(value: object) -> int:
    """Returns the bytes of a text such as "128 KiB". A plain number is refused: it could be words, bits or
    KiB.
    """
    match = SIZE.match(value) if isinstance(value, str) else None
    if not match or match[2] not in SIZE_UNITS:
        meant = next((unit for unit in SIZE_UNITS if match and unit[0] == match[2][:1].upper()), "")
        example = f"{match[1]} {meant}" if match and meant else "128 KiB"
        raise ValueError(f'is not a size; write a number with B, KiB, MiB or GiB, e.g. "{example}"')
    size = float(match[1]) * SIZE_UNITS[match[2]]
    if size <= 0 or size != int(size):
        raise ValueError("must be a whole number of bytes, at least 1; raise it")
    return int(size)


def read_rate(value: object) -> float:
    """Returns the GB/s of a text such as "12.8 GB/s"."""
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
    """Converts a number with a unit to the plain number of a key; "" where the key has no such unit.

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
    """Returns a list unchanged. Raises ValueError for other values: a text would be taken letter by
    letter.
    """
    if isinstance(value, list | tuple):
        return value
    raise ValueError("is no list; write it in brackets, e.g. [None, DimN]")


def read_roles(value: object, of_operands: bool = False) -> tuple[str, ...]:
    """Returns the roles (of_operands: of operands) that a machine file lists, in the order of ROLES. Raises
    ValueError for another one.
    """
    known = OPERANDS if of_operands else ROLES
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"is no list of roles; write e.g. [{', '.join(known)}]")
    if unknown := [role for role in value if role not in known]:
        what = "operand" if of_operands else "part"
        raise ValueError(f"names {unknown[0]}, which is no {what} of an einsum; use {', '.join(known)}")
    return tuple(role for role in ROLES if role in value)


def read_widths(value: object) -> tuple[tuple[str, int], ...]:
    """Returns the bits of an element by role that a machine file gives a memory, in the order of ROLES; {}
    and null give none. Raises ValueError.
    """
    given = dict(value or ()) if value is None or isinstance(value, list | tuple) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"is no mapping of roles to bits; write e.g. {{output: 32}} ({', '.join(ROLES)})")
    for role_given, bits in given.items():
        if role_given not in ROLES:
            raise ValueError(f"names {role_given}, which is no part of an einsum; use {', '.join(ROLES)}")
        if type(bits) is not int or bits < 1:
            raise ValueError(f"gives {role_given} {bits} bits; write a whole number above 0, e.g. 32")
    return tuple((role, given[role]) for role in ROLES if role in given)


class Stored(NamedTuple):
    """How a memory stores tensors of a role that have zeros."""

    role: str
    form: str  # of workloads.meant.FORMATS, or N:M
    index_bits: int = 0  # width of what stands beside a nonzero; 0: as in main memory, or the least
    pointer_bits: int = 0  # width of a row pointer; 0: likewise


def read_formats(value: object) -> tuple[Stored, ...]:
    """Returns the formats by role that a machine file gives a memory, in the order of ROLES; {} and null give
    none. Raises ValueError.
    """
    if isinstance(value, list | tuple) and all(isinstance(one, Stored) for one in value):
        return tuple(value)
    example = "write e.g. {weight: csr, input: {format: rle, index_bits: 4}, output: dense}"
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        raise ValueError(f"is no mapping of roles to formats; {example}")
    found: dict[str, Stored] = {}
    for of, entry in given.items():
        if of not in ROLES:
            raise ValueError(f"names {of}, which is no part of an einsum; use {', '.join(ROLES)}")
        own = entry if isinstance(entry, Mapping) else {"format": entry}
        if unknown := [key for key in own if key not in ("format", "index_bits", "pointer_bits")]:
            raise ValueError(f"gives {of} {unknown[0]}, which is no key of a format; {example}")
        form = str(own.get("format"))
        groups = STRUCTURED.fullmatch(form)
        if form not in FORMATS and not (groups and int(groups[1]) < int(groups[2])):
            raise ValueError(f"gives {of} the format {form}; use {', '.join(FORMATS)}, or N:M as 2:4")
        has = {"index_bits": form in ("csr", "coo", "rle") or bool(groups), "pointer_bits": form == "csr"}
        for key, may in has.items():
            if key in own and (type(own[key]) is not int or own[key] < 1 or not may):
                why = "write a whole number above 0" if may else f"{form} has none; leave it out"
                raise ValueError(f"gives {of} {key} = {own[key]}; {why}")
        found[of] = Stored(of, form, own.get("index_bits", 0), own.get("pointer_bits", 0))
    return tuple(found[of] for of in ROLES if of in found)


PORT_ACTIONS = ("read", "write", "fill", "drain")
# an action between a memory and the one outside -> the action that it is at the memory
OUTSIDE = {"fill": "write", "drain": "read"}


class Port(NamedTuple):
    """A port of a memory that serves some roles in some directions."""

    read: tuple[str, ...]  # roles of the tensors that are read through it
    write: tuple[str, ...]  # roles of the tensors that are written through it
    read_times: float = 1.0  # its rate of reads, in rates of the level (`Level.bandwidth`)
    write_times: float = 1.0
    # roles of the tensors that arrive from the memory outside, or leave to it, through this port, where they
    # do so through another one than what is inside writes and reads them
    fill: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()

    def serves(self, action: str) -> tuple[str, ...]:
        """Returns the roles that an action (a field of the port) on goes through it."""
        return {"read": self.read, "write": self.write, "fill": self.fill, "drain": self.drain}[action]


def read_ports(value: object) -> str | tuple[Port, ...]:
    """Returns the ports of a memory in a machine file: shared, separate, or a list of ports. Raises
    ValueError.
    """
    if value in ("shared", "separate"):
        return str(value)
    example = "write shared, separate or ports, e.g. [{read: [weight], times: 2}, {read: [input, output]}]"
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"is no kind of ports; {example}")
    if all(isinstance(one, Port) for one in value):
        return tuple(value)
    return tuple(_read_port(i, one, example) for i, one in enumerate(value))


def _read_port(i: int, given: object, example: str) -> Port:
    if not isinstance(given, Mapping):
        raise ValueError(f"[{i}] = {given} is no port; {example}")
    if unknown := [key for key in given if key not in (*PORT_ACTIONS, "times")]:
        raise ValueError(f"[{i}].{unknown[0]} is no key of a port; use {', '.join(PORT_ACTIONS)}, times")
    roles = {}
    for key in PORT_ACTIONS:
        try:
            roles[key] = read_roles(given[key]) if key in given else ()
        except ValueError as fault:
            raise ValueError(f"[{i}].{key} = {given[key]} {fault}") from None
    if not any(roles.values()):
        raise ValueError(f"[{i}] serves nothing; add read or write, e.g. read: [weight]")
    times = given.get("times", 1)
    if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times < inf:
        raise ValueError(f"[{i}].times = {times} is no number above 0; write e.g. 2")
    return Port(roles["read"], roles["write"], float(times), float(times), roles["fill"], roles["drain"])


def read_volts(value: object) -> object:
    """Returns a supply voltage: a number of volts, LEAST for the text `least`. Raises ValueError."""
    if value == "least":
        return LEAST
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError("is no supply voltage; write volts, e.g. 0.6, or least")
    return value


def read_entry(value: object) -> int | str:
    """Returns one dimension of a minimum tile: a number above 0, or a word of TILE_WORDS. Raises
    ValueError.
    """
    if (type(value) is int and value > 0) or value in TILE_WORDS:
        return value
    raise ValueError(f"is no tile size; write a whole number above 0, or {', '.join(TILE_WORDS)}")


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
NonNegative = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Volts = Annotated[
    float,
    BeforeValidator(read_volts),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["least"]}]}),
]
Cell = Literal["lop", "hp"]
MemoryKind = Literal[
    "sram",
    "register",
    "ddr3",
    "ddr4",
    "lpddr4",
    "lpddr5",
    "gddr5",
    "gddr6",
    "hbm2",
    "hbm2e",
    "hbm3",
    "custom",
]
Stationary = Literal["os", "ws", "is"]
Overlap = Literal["buffered", "free"]
Injection = Literal["corners", "edge"]
MulticastSource = Literal["next_level", "same_level"]
ComputeKind = Literal["int4", "int8", "int16", "int32", "fp16", "bf16", "fp32", "custom"]
Role = Literal["input", "weight", "output"]
Label = Literal["None", "DimN", "DimNC", "DimNH", "DimNW", "DimNHW", "DimNCH", "DimNCW"]
ROLES: tuple[str, ...] = get_args(Role)
OPERANDS = tuple(role for role in ROLES if role != "output")
# Tile sizes by name: constants of the tiling block (pes, macs, vector), rows or columns of the convolution
# kernel, the full dimension.
TILE_WORDS = ("pes", "macs", "vector", "kernel", "full")
_ROLES_SCHEMA: dict[str, Any] = {"type": "array", "items": {"enum": [*ROLES]}, "minItems": 1}
Roles = Annotated[tuple[Role, ...], BeforeValidator(read_roles), WithJsonSchema(_ROLES_SCHEMA)]
Gates = Annotated[
    tuple[Role, ...],
    BeforeValidator(lambda value: read_roles(value, True) if value else ()),
    WithJsonSchema({"type": "array", "items": {"enum": [*OPERANDS]}}),
]
Widths = Annotated[
    tuple[tuple[Role, int], ...],
    BeforeValidator(read_widths),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {one: {"type": "integer", "minimum": 1} for one in ROLES},
            "additionalProperties": False,
            "minProperties": 1,
        }
    ),
]
_FORM_SCHEMA: dict[str, Any] = {"type": "string", "pattern": rf"^({'|'.join(FORMATS)}|\d+:\d+)$"}
Formats = Annotated[
    tuple[Stored, ...],
    BeforeValidator(read_formats),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                one: {
                    "anyOf": [
                        _FORM_SCHEMA,
                        {
                            "type": "object",
                            "properties": {
                                "format": _FORM_SCHEMA,
                                "index_bits": {"type": "integer", "minimum": 1},
                                "pointer_bits": {"type": "integer", "minimum": 1},
                            },
                            "required": ["format"],
                            "additionalProperties": False,
                        },
                    ]
                }
                for one in ROLES
            },
            "additionalProperties": False,
        }
    ),
]
Ports = Annotated[
    str | tuple[Port, ...],
    BeforeValidator(read_ports),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["shared", "separate"]},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "read": _ROLES_SCHEMA,
                            "write": _ROLES_SCHEMA,
                            "times": {"type": "number", "exclusiveMinimum": 0},
                        },
                        "additionalProperties": False,
                    },
                },
            ]
        }
    ),
]
TileEntry = Annotated[
    int | str,
    BeforeValidator(read_entry),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [*TILE_WORDS]}]}),
]

# Roles of ranks, which rules take in place of names (dse/mapping/constraints.py, `rank_roles`).
RANK_ROLES = (
    "output_row",
    "output_column",
    "filter_row",
    "filter_column",
    "input_channel",
    "output_channel",
    "batch",
)
EINSUM_KINDS = ("products", "convolutions", "others")  # of MACs without a window, with one; without MACs
TRIPS = re.compile(r"(?:(?P<least>\d+)\s*\.\.\s*(?P<most>\d+)|(?P<sign><=|>=)\s*(?P<n>\d+))")
ALL_TRIPS = -1  # `Factor.least` and `most`: as many trips as the rank has values
NAMES = re.compile(r"[A-Za-z_]\w*")


class Factor(NamedTuple):
    """How many trips loops over a rank may have."""

    rank: str  # name or role
    least: int  # ALL_TRIPS: the extent
    most: int | None  # None: any number

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.rank} = {'all' if self.least == ALL_TRIPS else self.least}"
        if self.most is None:
            return f"{self.rank} >= {self.least}"
        return (
            f"{self.rank} <= {self.most}" if self.least <= 1 else f"{self.rank} = {self.least}..{self.most}"
        )


class TileLimit(NamedTuple):
    """How large one tile of a tensor may be."""

    tensor: str  # name or role
    amount: int
    unit: Literal["elements", "B"]

    def __str__(self) -> str:
        return f"{self.tensor} <= {self.amount} {self.unit}"


def read_names(value: object, example: str = "[input_channel, filter_row]") -> tuple[str, ...]:
    """Returns the names of a rule, of ranks, tensors, einsums or dimensions. Raises ValueError."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(
        isinstance(one, str) and NAMES.fullmatch(one) for one in listed
    ):
        raise ValueError(f"is no list of names; write e.g. {example}")
    return tuple(dict.fromkeys(listed))


def read_factors(value: object) -> tuple[Factor, ...]:
    """Returns the trip counts of a rule. Raises ValueError."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError('is no mapping of ranks to trip counts; write e.g. {r: 1, c: "<= 4", k: all}')
    found = []
    for rank, given in value.items():
        match = TRIPS.fullmatch(given.strip()) if isinstance(given, str) else None
        n = int(match["n"] or 0) if match else given
        least, most = (
            (ALL_TRIPS, ALL_TRIPS)
            if given == "all"
            else (int(match["least"]), int(match["most"]))
            if match and match["least"]
            else ((1, n) if match["sign"] == "<=" else (n, None))
            if match
            else (n, n)
        )
        counts = [one for one in (least, most) if one is not None]
        if (
            not all(type(one) is int and (one > 0 or one == ALL_TRIPS) for one in counts)
            or given == ALL_TRIPS
        ):
            raise ValueError(
                f'.{rank} = {given} is no trip count; write a whole number above 0, "<= 4", ">= 2", '
                '"2..4" or all'
            )
        if most is not None and most < least:
            raise ValueError(f".{rank} = {given} has the larger number first; write {most}..{least}")
        found.append(Factor(read_names(str(rank))[0], least, most))
    return tuple(found)


def read_tiles(value: object) -> tuple[TileLimit, ...]:
    """Returns the largest tiles of a rule. Raises ValueError."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("is no mapping of tensors to sizes; write e.g. {weight: 1024, output: 2 KiB}")
    found = []
    for tensor, given in value.items():
        if isinstance(given, str):
            try:
                found.append(TileLimit(read_names(str(tensor))[0], read_bytes(given), "B"))
            except ValueError as fault:
                raise ValueError(f".{tensor} = {given} {fault}") from None
        elif type(given) is int and given > 0:
            found.append(TileLimit(read_names(str(tensor))[0], given, "elements"))
        else:
            raise ValueError(
                f".{tensor} = {given} is no size of a tile; write elements, e.g. 1024, or a size with a "
                "unit, e.g. 2 KiB"
            )
    return tuple(found)


class Takes(NamedTuple):
    """Which einsums a compute does, where a machine has several."""

    kinds: tuple[str, ...] = ()  # EINSUM_KINDS, or names of functions (exp, softmax); (): all
    bits: int | None = None  # of an element of an operand, at most; None: any

    def __str__(self) -> str:
        kinds = ", ".join(self.kinds) or "every kind"
        return kinds if self.bits is None else f"{kinds} of up to {self.bits} bit"


TAKES_ALL = Takes()


def read_takes(value: object) -> Takes:
    """Returns what a compute of a machine file takes; {} and null: all. Raises ValueError."""
    if isinstance(value, Takes):
        return value
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        raise ValueError("is no mapping; write e.g. {kinds: [products, convolutions], bits: 8}")
    if unknown := [key for key in given if key not in Takes._fields]:
        raise ValueError(f"has {unknown[0]}, which is no key of it; use {', '.join(Takes._fields)}")
    bits = given.get("bits")
    if bits is not None and (type(bits) is not int or bits < 1):
        raise ValueError(f"gives {bits} bits; write a whole number above 0, e.g. 8")
    kinds: tuple[str, ...] = ()
    if "kinds" in given:
        kinds = read_names(given["kinds"], "[products, convolutions], or of functions, [exp, softmax]")
    for kind in kinds:
        near = difflib.get_close_matches(kind, EINSUM_KINDS, 1, 0.8)
        if kind not in EINSUM_KINDS and near:
            raise ValueError(f"names {kind}; did you mean {near[0]}?")
    return Takes(kinds, bits)


NAMES_SCHEMA = WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})
Names = Annotated[tuple[str, ...], BeforeValidator(read_names), NAMES_SCHEMA]
DimNames = Annotated[tuple[str, ...], BeforeValidator(lambda value: read_names(value, "[x]")), NAMES_SCHEMA]
ALL_OTHERS = "*"  # in an order of ranks: all that it does not name


def read_order(value: object) -> tuple[str, ...]:
    """Returns the ranks of an order of loops, outermost first. Raises ValueError."""
    listed = value if isinstance(value, list | tuple) else [value]
    if value == () or value == []:
        return ()
    named = read_names([one for one in listed if one != ALL_OTHERS], f"[k, m], or '{ALL_OTHERS}' for others")
    if len(named) + (ALL_OTHERS in listed) < len(listed):
        raise ValueError("names a rank twice; leave one of both out")
    if len(listed) == 1:
        raise ValueError(f"names one rank, so orders nothing; add another, or '{ALL_OTHERS}' for all others")
    return tuple(listed)


OrderOfRanks = Annotated[tuple[str, ...], BeforeValidator(read_order), NAMES_SCHEMA]
AMOUNTS = WithJsonSchema(
    {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the block `mapping`: what mappings may do at a memory or along a dimension of an array."""

    at: str = ""  # a memory, or a dimension of an array; "": the machine (utilization)
    einsums: Names = ()  # names, or kinds (EINSUM_KINDS), of the einsums that it holds for; (): all
    ranks: Names | None = None  # dimension: ranks that may be unrolled over it, names or roles (RANK_ROLES)
    # trip counts: of spatial loops over a dimension, of temporal loops at a memory
    factors: Annotated[tuple[Factor, ...], BeforeValidator(read_factors), AMOUNTS] = ()
    keep: Names = ()  # memory: tensors that must stand there, names or roles
    bypass: Names = ()  # memory: tensors that may not stand there
    # memory: one tile, at most
    tile: Annotated[tuple[TileLimit, ...], BeforeValidator(read_tiles), AMOUNTS] = ()
    order: OrderOfRanks = ()  # memory: ranks whose temporal loops stand there in this order, outermost first
    inside: Names = ()  # memory: ranks whose temporal loops all stand inside of its tiles
    utilization: Annotated[float, Field(gt=0, le=1)] | None = None  # share of the PEs that work, at least

    __pydantic_config__ = NO_OTHER_KEYS


def read_rules(value: object) -> tuple[Rule, ...]:
    """Returns the rules of a block `mapping`. Raises ValueError, the message beginning with the position of
    the faulty rule.
    """
    if value is None:  # `mapping:` with nothing behind it
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError("is no list of rules; write e.g. [{at: x, ranks: [input_channel]}]")
    return tuple(entry if isinstance(entry, Rule) else _read_rule(i, entry) for i, entry in enumerate(value))


def _read_rule(i: int, entry: object) -> Rule:
    if not isinstance(entry, Mapping):
        raise ValueError(f"[{i}] = {entry} is no rule; write e.g. {{at: x, ranks: [input_channel]}}")
    known = [one.name for one in fields(Rule)]
    for key in entry:
        if key not in known:
            raise ValueError(f"[{i}].{key} = {entry[key]} is no key of a rule; use {', '.join(known)}")
    try:
        return RULE_ADAPTER.validate_python(entry)
    except ValidationError as error:
        detail = error.errors()[0]
        key, says = str(detail["loc"][0]), detail["msg"]
        if detail["type"] != "value_error":
            says = f"is faulty: {says[:1].lower()}{says[1:]}; see docs/files.md"
        percent = entry[key]
        if key == "utilization" and isinstance(percent, int | float) and 2 <= percent <= 100:
            says = f"is a share of the PEs, above 0 and at most 1; write {percent / 100:g}"
        says = says.removeprefix("Value error, ")
        shown = "" if says.startswith(".") else f" = {entry[key]} "
        raise ValueError(f"[{i}].{key}{shown}{says}") from None


RULE_ADAPTER: TypeAdapter[Rule] = TypeAdapter(Rule)
Rules = Annotated[tuple[Rule, ...], BeforeValidator(read_rules)]

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
# roles of fields that change only what mappings cost: machines that differ in these alone have equal mappings
COST_ROLES: tuple[FieldRole, ...] = ("price", "rate", "leakage", "clock")


def role(of: FieldRole, says: str = "") -> dict[str, str]:
    """Returns the metadata of a field of Level, Fanout, Compute, Access or Arch. Code that strips, varies,
    compares or tabulates fields of machines selects them by role (`slots`), never by name.

    The argument `of` is one of:
    structure: decides which mappings exist and what they count
    size: capacities, sizes of arrays
    price: energy of one action
    rate: actions per cycle; None: the unit does not exist, which is a matter of structure
    leakage: power of one instance
    clock: cycles per ns
    area: silicon area of one instance
    layout, network: costs beyond those of the words that mappings move
    tiles: read by tile optimizers only
    label: names and remarks, in no cost
    nodes: the levels, fan-outs and compute themselves

    says: what one action of this price is, as the table `prices` shows it.
    """
    return {"role": of, "says": says}


def role_field(of: FieldRole, default: Any, says: str = "") -> Any:
    """Returns a field with a role and a default."""
    return field(default=default, metadata=role(of, says))


def documented_key(default: Any, meaning: str) -> Any:
    """Returns a key of machine files with its default and its meaning in `dse list keys`."""
    return field(default=default, metadata={"says": meaning})


@dataclass(frozen=True, slots=True)
class Memory:
    """A storage level of a machine file. A number that is None comes from the table of its kind; kind custom
    has no table, so all numbers are given. Layouts cost where burst or bank_map is given (`Access`).
    """

    name: Annotated[Name, Field(alias="memory")]
    width_bits: Count  # bits that one action (a read or a write) moves
    kind: MemoryKind = "sram"
    # kind custom: a function that gives the numbers that are None, FILE.py:NAME or PACKAGE.MODULE:NAME
    table: str | None = None
    capacity: Bytes | None = None  # bytes of one instance; None: unbounded
    banks: Count = 1  # sram: arrays that split the capacity and are accessed in parallel
    channels: Count = 1  # DRAM: channels, whose bandwidths and background powers add up
    bandwidth: Rate | None = None  # GB/s of one instance; instead of actions_per_cycle
    actions_per_cycle: Actions | None = None  # bandwidth in actions of width_bits per clock cycle
    # rate of writes where it is not that of reads: in GB/s, or in actions per clock cycle
    write_bandwidth: Rate | None = None
    writes_per_cycle: Actions | None = None
    read_pj: Cost | None = documented_key(None, "energy of one read of width_bits; none: the table's")
    write_pj: Cost | None = documented_key(None, "energy of one write of width_bits; none: the table's")
    leak_mw: Cost | None = None  # of one instance, all banks and channels
    area_mm2: Cost | None = None  # of one instance, all banks and channels
    cycle_ns: Positive | None = None  # sram: minimum time between two accesses of an array
    latency_ns: Cost | None = None  # from a request to its first word; None: none
    # shared, separate, or which roles are read and written through each
    ports: Ports = "shared"
    # True: the next tile is filled into space of its own while this one is used; False: work inside stalls
    # during the exchange
    double_buffer: Flag = False
    bypass: Flag | None = None  # whether tensors may skip the level; None: yes, except at the outermost one
    # whether the first read of an output element is free: no partial sum exists yet
    skip_first_read: Flag = True
    # sram slower than the clock: an access takes whole cycles, or the machine is infeasible
    slow: Literal["divide", "infeasible"] = "divide"
    # roles (`nest.role`) of the tensors that may stand there: first input, other inputs (weight), output
    may_keep: Roles = ROLES  # type: ignore[assignment]
    # bits of an element there by role, in the order of ROLES; other roles: as elsewhere
    bits: Widths = ()
    # how tensors with zeros are stored there by role; other roles: as in main memory
    formats: Formats = ()
    along: DimNames = ()  # dimensions of arrays outside along which PEs share one instance
    burst: Bytes | None = None  # bytes that move at once (a cache line, a DRAM burst)
    partial_write: Literal["masked", "rmw"] = "masked"  # rmw: a line that is written in part is read first
    row: Bytes | None = None  # bytes of a DRAM row
    row_banks: Count | None = None  # DRAM banks; None: 1
    row_interleave: Bytes | None = None  # bytes after which the next DRAM bank follows; None: a row
    row_pj: Cost | None = documented_key(None, "energy of opening a row")
    row_ns: Cost | None = None  # from one opening of a row to the next one in the same bank
    bank_map: Literal["word", "block", "xor"] | None = None  # sram: how words are spread over the banks
    dma_ns: Cost | None = None  # time of one DMA descriptor
    dma_queues: Count | None = None  # descriptors processed at a time
    dma_strides: NonNegative | None = None  # nested strides at which one descriptor may repeat a run
    prefetch_lines: Count | None = None  # consecutive lines that a miss brings
    prefetch_run: Cost | None = None  # misses per contiguous run, as measured
    prefetch_line: Cost | None = None  # misses per line, as measured
    miss_ns: Cost | None = None  # time that a miss adds
    in_core: Name | None = None  # core that the memory is a part of; None: outside of all cores

    __pydantic_config__ = NO_OTHER_KEYS


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a machine file: parallel copies of all nodes listed after it."""

    name: Annotated[Name, Field(alias="array")]
    dims: Annotated[Mapping[Name, Count], Field(min_length=1)]  # size of each dimension
    # dimensions along which one read serves all PEs; True: all, False: none
    multicast: Flag | tuple[str, ...] = True
    # dimensions along which PEs add partial outputs; True: all, False: none
    reduce: Flag | tuple[str, ...] = True
    # systolic array of two dimensions, rows first: stationary outputs, weights or inputs; None: not systolic
    systolic: Stationary | None = None
    hop_pj: Cost = documented_key(
        0.0, "a mesh of two dimensions, rows first: energy of one bit over one link"
    )
    endpoint_pj: Cost = documented_key(
        0.0, "energy of one bit that a PE takes from the network, or gives to it"
    )
    injected_at: Injection = "corners"  # where on a mesh the level outside is attached
    # source of a multicast word on a mesh. next_level: the level outside, along one tree; same_level: the
    # nearest PE that has the word, and for the first PE the level outside
    multicast_from: MulticastSource = "next_level"
    in_core: Name | None = None  # core that the array is a part of; None: outside of all cores

    __pydantic_config__ = NO_OTHER_KEYS


@dataclass(frozen=True, slots=True)
class MacUnit:
    """The compute of a machine file, its innermost node. A number that is None comes from the table of its
    kind; kind custom has no table, so all numbers are given.

    With vector_lanes, alu_pj is that of the vector unit; its table values are those of vector_kind.
    """

    name: Annotated[Name, Field(alias="compute")]
    kind: ComputeKind
    ops_per_cycle: Positive = 1.0  # MACs, or other operations, of one MAC unit
    mac_pj: Cost | None = documented_key(None, "one multiply-accumulate; none: the table's")
    alu_pj: Cost | None = documented_key(None, "one other operation; none: the table's")
    merge_pj: Cost | None = documented_key(
        None, "adding a partial sum of one PE to another PE's; none: alu_pj of a MAC unit"
    )
    leak_mw: Cost | None = None  # of one MAC unit
    area_mm2: Cost | None = None  # of one MAC unit
    # operations per cycle of the machine's one vector unit, which does all operations but MACs; 0: there is
    # none, the MAC units of the array do them
    vector_lanes: Annotated[int, Field(ge=0, strict=True)] = 0
    vector_kind: ComputeKind | None = None  # number format of the vector unit; None: kind
    # roles of the operands whose zeros are gated: such an operation takes its cycles, and no energy; those of
    # other operands are skipped
    gates: Gates = ()
    # PEs step together through the groups of an operand in N:M: they share what they read and add up
    lockstep: bool = False
    # which einsums it does, of several computes: each does those that no other does cheaper
    takes: Annotated[
        Takes,
        BeforeValidator(read_takes),
        WithJsonSchema(
            {
                "type": "object",
                "properties": {
                    "kinds": {"type": "array", "items": {"type": "string"}},
                    "bits": {"type": "integer", "minimum": 1},
                },
                "additionalProperties": False,
            }
        ),
    ] = TAKES_ALL
    in_core: Name | None = None  # core that the compute is a part of; None: the machine has no cores

    __pydantic_config__ = NO_OTHER_KEYS


Node = Memory | Array | MacUnit


@dataclass(frozen=True, slots=True)
class Tiling:
    """What SMAUG's tile optimizers read of a machine in addition to its scratchpads and PEs."""

    # which dimensions to cut; the first label whose tiles fit is taken
    preference: Annotated[tuple[Label, ...], BeforeValidator(read_list), Field(min_length=1)] = get_args(
        Label
    )
    # smallest useful tile, by operator and tensor; missing ones: hw/tiling.py, MINIMUM
    minimum: Mapping[str, Annotated[tuple[TileEntry, ...], BeforeValidator(read_list)]] = field(
        default_factory=dict, hash=False
    )
    # elements; the innermost dimension is stored in multiples of it (0: unpadded)
    align: Annotated[int, Field(ge=0, strict=True)] = 0
    pes: Count | None = None  # output channels in parallel; None: the array's
    macs: Count | None = None  # input channels that each of these reduces per step; None: the array's
    # channels per step of operators without products; None: vector unit's width, or 8
    vector: Count | None = None

    __pydantic_config__ = NO_OTHER_KEYS


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine file, checked."""

    name: str
    clock_mhz: Positive
    nodes: tuple[Node, ...] = ()  # outermost memory first, compute last
    node_nm: Positive | None = None  # technology node, for the component tables
    cell: Cell = "lop"  # SRAM cells: low operating power or high performance
    # supply voltage of what is priced from the tables; LEAST: the lowest at which the clock is met; None: as
    # the tables give it, without a highest clock
    vdd: Volts | None = None
    word_bits: Count | None = None  # bits of a tensor element; None: those of the compute kind
    # buffered: fills overlap with work inside where a level is double-buffered; free: they overlap
    # everywhere, at no capacity
    overlap: Overlap = "buffered"
    tiling: Tiling = Tiling()
    mapping: Rules = ()  # what mappings the hardware can do; (): all that the nodes allow

    __pydantic_config__ = NO_OTHER_KEYS


@dataclass(frozen=True, slots=True)
class Access:
    """What a machine file says about a memory beyond words and bandwidth. Layouts cost at levels that have it
    (docs/model.md, Layouts).
    """

    # bits that move at once: a line or burst; of an SRAM with bank_map, its word
    line_bits: int = field(metadata=role("layout"))
    row_bits: int = role_field("layout", 0)  # bits of a DRAM row; 0: rows are not modelled
    row_banks: int = role_field("layout", 1)  # DRAM banks
    # bits after which the next DRAM bank follows
    interleave_bits: int = role_field("layout", 0)
    row_pj: float = role_field("layout", 0.0, "a level of rows: one row opened")
    # from one opening of a row to the next one in the same bank
    row_cycles: float = role_field("layout", 0.0)
    # whether a line that is written in part is read first
    rmw: bool = role_field("layout", False)
    # SRAM arrays that each serve a word at a time; 0: bank conflicts are not modelled
    banks: int = role_field("layout", 0)
    bank_map: str = role_field("layout", "word")  # word, block or xor
    capacity_bits: int = role_field("layout", 0)  # of all banks of an SRAM together
    descriptor_cycles: float = role_field("layout", 0.0)  # cycles of one DMA descriptor
    dma_queues: int = role_field("layout", 1)
    # nested strides at which one descriptor may repeat a run
    dma_strides: int = role_field("layout", 0)
    prefetch_lines: int = role_field("layout", 0)  # consecutive lines that a miss brings
    # misses per contiguous run, as calibrated
    prefetch_run: float | None = role_field("layout", None)
    # misses per line, as calibrated
    prefetch_line: float | None = role_field("layout", None)
    miss_cycles: float = role_field("layout", 0.0)  # cycles that a miss adds


LAYOUT_FIELDS = ("burst", "bank_map")  # fields of Memory: layouts cost at a level that has one of them


@dataclass(frozen=True, slots=True)
class Level:
    """One storage level of an Arch. All numbers are of one instance."""

    name: str = field(metadata=role("structure"))
    capacity_bits: int | None = field(metadata=role("size"))  # None: unbounded
    width_bits: int = field(metadata=role("structure"))  # bits that one action moves
    read_pj: float = field(metadata=role("price", "one read of width_bits"))
    write_pj: float = field(metadata=role("price", "one write of width_bits"))
    bandwidth: float = role_field("rate", inf)  # actions per clock cycle
    # separate: reads and writes each have the bandwidth; shared: they share it; else what each port serves
    ports: str | tuple[Port, ...] = role_field("structure", "shared")
    double_buffer: bool = role_field("structure", False)
    # whether tensors may skip the level; False: all tensors of may_keep must stand there
    bypass: bool = role_field("structure", True)
    # whether the first read of an output element is free
    skip_first_read: bool = role_field("structure", True)
    leak_mw: float = role_field("leakage", 0.0)  # of a DRAM: its background power
    area_mm2: float = role_field("area", 0.0)
    # clock cycles between two accesses of one array; bandwidth accounts for them already
    access_cycles: int = role_field("label", 1)
    # roles of the tensors that may stand there
    may_keep: tuple[str, ...] = role_field("structure", ROLES)
    # None: layouts cost nothing at this level
    access: Access | None = role_field("layout", None)
    # (role, bits of an element) of the tensors whose elements have a width of their own at this level
    bits: tuple[tuple[str, int], ...] = role_field("structure", ())
    latency_ns: float = role_field("structure", 0.0)  # from a request to its first word
    # how tensors with zeros are stored there, of roles that it stores otherwise than the workload says
    formats: tuple[Stored, ...] = role_field("structure", ())

    def elem_bits(self, tensor_role: str, elsewhere: int) -> int:
        """Returns the bits of an element of a tensor of a role at this level. elsewhere: its bits at levels
        that give its role none.
        """
        return dict(self.bits).get(tensor_role, elsewhere)

    def port(self, tensor_role: str, action: str) -> tuple[str, float]:
        """Returns (name of the port that serves an action of PORT_ACTIONS on a tensor of a role; its rate of
        them in rates of the level). One port for all actions is called "both". Fills and drains go through
        the port of writes and reads unless a port names them.
        """
        if action in OUTSIDE and not self.apart_outside(tensor_role, action):
            action = OUTSIDE[action]
        if isinstance(self.ports, str):
            return (action if self.ports == "separate" else "both"), 1.0
        for i, one in enumerate(self.ports):
            if tensor_role in one.serves(action):
                return f"port {i}", one.write_times if action in ("write", "fill") else one.read_times
        return "port 0", 1.0  # of what may not stand here (component._port_faults)

    def apart_outside(self, tensor_role: str, action: str) -> bool:
        """True if fills or drains (action) of tensors of a role go through a port of their own."""
        return not isinstance(self.ports, str) and any(
            tensor_role in one.serves(action) for one in self.ports
        )

    def rates(self) -> tuple[float, float]:
        """Returns accesses per cycle: at least, of any action at its port; at most, of all ports together."""
        if isinstance(self.ports, str):
            return self.bandwidth, self.bandwidth * (2 if self.ports == "separate" else 1)
        served = [
            [
                n
                for n, of in (
                    (one.read_times, (*one.read, *one.drain)),
                    (one.write_times, (*one.write, *one.fill)),
                )
                if of
            ]
            for one in self.ports
        ]
        return self.bandwidth * min(map(min, served)), self.bandwidth * sum(map(max, served))


@dataclass(frozen=True, slots=True)
class Fanout:
    """An array of an Arch: parallel instances of everything inside."""

    name: str = field(metadata=role("structure"))
    # number of levels outside of it; len(levels): it stands directly above compute
    outside: int = field(metadata=role("structure"))
    dims: tuple[tuple[str, int], ...] = field(metadata=role("size"))  # (name, size) of each dimension
    # per dimension: whether one read serves all PEs that want the same element
    multicast: tuple[bool, ...] = field(metadata=role("structure"))
    # per dimension: whether PEs add their partial outputs on the way out
    reduce: tuple[bool, ...] = field(metadata=role("structure"))
    # systolic array of two dimensions, rows first: os, ws or is (stationary outputs, weights, inputs); "":
    # not systolic
    systolic: Stationary | Literal[""] = role_field("structure", "")
    hop_pj: float = role_field("network", 0.0, "a network: one bit over one link")
    endpoint_pj: float = role_field("network", 0.0, "a network: one bit that a PE takes or gives")
    # of a mesh (rows first): where the level outside is attached
    injected_at: Injection = role_field("structure", "corners")
    # of a mesh: source of a word that several PEs want
    multicast_from: MulticastSource = role_field("structure", "next_level")
    # where the array is a region of a mesh: per dimension, its first PE and the size of the whole mesh
    mesh_region: tuple[tuple[int, int], ...] = role_field("structure", ())
    # per dimension the levels inside of which PEs along it share one instance, by name; (): there are none
    shared: tuple[tuple[str, ...], ...] = role_field("structure", ())

    def shared_along(self, level: str) -> frozenset[str]:
        """Returns the dimensions along which PEs share one instance of a level inside."""
        names = (name for name, _ in self.dims)
        return frozenset(name for name, levels in zip(names, self.shared, strict=False) if level in levels)

    def has_price(self) -> bool:
        """True if moving words over its network costs energy."""
        return bool(self.hop_pj or self.endpoint_pj)


@dataclass(frozen=True, slots=True)
class Compute:
    """One MAC unit, and the vector unit of the machine if it has one. Copies of elements cost no energy."""

    mac_pj: float = field(metadata=role("price", "MAC: one multiply-accumulate"))
    alu_pj: float = field(metadata=role("price", "MAC: one other operation"))
    ops_per_cycle: float = role_field("rate", 1.0)  # of one MAC unit
    leak_mw: float = role_field("leakage", 0.0)  # of one MAC unit
    area_mm2: float = role_field("area", 0.0)  # of one MAC unit
    # operations per clock cycle of the machine's one vector unit, which does all operations but MACs; None:
    # the MAC units do them at ops_per_cycle
    alu_per_cycle: float | None = role_field("rate", None)
    vector_leak_mw: float = role_field("leakage", 0.0)  # of the vector unit
    vector_area_mm2: float = role_field("area", 0.0)  # of the vector unit
    merge_pj: float = role_field("price", 0.0, "MAC: adding a partial sum of one PE to another PE's")
    # roles of the operands whose zeros are gated (`MacUnit.gates`)
    gates: tuple[str, ...] = role_field("structure", ())
    name: str = role_field("structure", "MAC")  # in capitals that of the file, where a machine has several
    core: str = role_field("structure", "")  # core that it is a part of; "": the machine has none
    takes: Takes = role_field("structure", TAKES_ALL)  # einsums that it does
    lockstep: bool = role_field("structure", False)  # PEs step through operands in N:M together


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine, as the cost model reads it."""

    name: str = field(metadata=role("label"))
    # outermost first; the outermost level stores whole tensors
    levels: tuple[Level, ...] = field(metadata=role("nodes"))
    fanouts: tuple[Fanout, ...] = field(metadata=role("nodes"))
    compute: Compute = field(metadata=role("nodes"))
    clock_ghz: float = field(metadata=role("clock"))
    # bits of an element of a tensor whose own width is not given
    word_bits: int = field(metadata=role("structure"))
    tiling: Tiling = role_field("tiles", Tiling())
    # buffered: fills overlap with work inside where a level is double-buffered; free: they overlap everywhere
    overlap: Overlap = role_field("structure", "buffered")
    mapping: tuple[Rule, ...] = role_field("structure", ())  # rules that all mappings keep
    # supply voltage that prices, rates and leakage are of; None: that of each table
    vdd: float | None = role_field("label", None)
    # Of a machine with several computes one machine each: the levels and arrays from the outermost in to
    # this compute, and the leakage of all else beside its own. `levels` and `fanouts` are then those of all,
    # `compute` is the first: what stands beside each other is priced, searched and bounded one by one
    units: tuple[Arch, ...] = role_field("nodes", ())

    def unit(self, name: str) -> Arch:
        """Returns the machine as an einsum sees it that runs on a compute, by name: one of `units`; the
        machine itself where it has one compute. Raises ValueError, one line, for another name.
        """
        if not self.units and not name:
            return self
        found = next((one for one in self.units if one.compute.name == name), None)
        if found is None:
            names = ", ".join(one.compute.name for one in self.units)
            ends = f"end with `mac on {name}`" if name else "do not say on which compute they run"
            raise ValueError(
                f"mappings {ends}; {self.name} has {names}: write e.g. mac on {self.units[0].compute.name}"
                if self.units
                else f"mappings {ends}, but {self.name} has one compute; write mac"
            )
        return found

    def cores(self) -> tuple[str, ...]:
        """Returns the names of the cores, each once; () for a machine without."""
        return tuple(dict.fromkeys(one.compute.core for one in self.units if one.compute.core))

    def instances(self, outside: int) -> int:
        """Returns how many copies there are of levels[outside], or of the MAC unit where outside is
        len(levels): of all computes, where there are several.
        """
        level = self.levels[outside].name if outside < len(self.levels) else ""
        if self.units:
            if not level:
                return sum(one.instances(len(one.levels)) for one in self.units)
            own = next(one for one in self.units if level in one.level_index())
            return own.instances(own.level_index()[level])
        return prod(
            size
            for f in self.fanouts
            if f.outside <= outside
            for name, size in f.dims
            if not f.shared or name not in f.shared_along(level)
        )

    def ideal(self) -> Arch:
        """Returns the machine without lines, rows, banks and networks, where layouts and hops cost nothing.

        A mapping moves no more words on the ideal machine than on this one and needs no more capacity. It may
        take more cycles: a storage node that stays outside of a loop on this machine, for the sake of a
        layout, sinks below the loop on the ideal one (`sink`, dse/sim/counts/terms.py), and its smaller tiles
        change more often.
        """
        return self.without("layout", "network") if self.layout_sensitive() else self

    def sizeless(self) -> Arch:
        """Returns the machine with capacities and array sizes blanked out."""
        return self.without("size")

    def structure(self) -> Arch:
        """Returns the machine with prices, rates, clock, areas and names blanked out: equal for machines that
        have the same mappings.
        """
        return self.without(*COST_ROLES, "area", "label")

    def family(self) -> Arch:
        """Returns `structure` with the sizes blanked out that counts do not depend on: a mapping costs the
        same actions on all machines of a family on which it fits.
        """
        one = self.structure()
        return replace(
            one, levels=tuple(map(family_of, one.levels)), fanouts=tuple(map(family_of, one.fanouts))
        )

    def with_sizes(self, capacities_bits: Sequence[float], pes: Sequence[int]) -> Arch:
        """Returns the machine with other capacities, per level in bits (inf: unbounded), and other numbers of
        PEs, per dimension of its arrays.
        """
        left = iter(pes)
        return replace(
            self,
            levels=tuple(
                replace(level, capacity_bits=None if bits == inf else int(bits))
                for level, bits in zip(self.levels, capacities_bits, strict=True)
            ),
            fanouts=tuple(
                replace(f, dims=tuple((name, int(next(left))) for name, _ in f.dims)) for f in self.fanouts
            ),
        )

    def unbounded(self) -> Arch:
        """Returns the machine with unbounded outermost capacity. How much of it tensors occupy depends on
        no mapping; dse/sim/schedule/outermost.py checks it.
        """
        outer = self.levels[0]
        return (
            self
            if outer.capacity_bits is None
            else replace(
                self,
                levels=(replace(outer, capacity_bits=None), *self.levels[1:]),
                units=tuple(one.unbounded() for one in self.units),
            )
        )

    def prices_networks(self) -> bool:
        """True if moving words over some array's network costs energy."""
        return any(f.has_price() for f in self.fanouts)

    def layout_sensitive(self) -> bool:
        """True if the machine has costs that mappers do not see: layouts or networks."""
        return self.models_layout() or self.prices_networks()

    def narrows_or_widens(self) -> bool:
        """True if a level gives elements a width of their own (`Level.bits`)."""
        return bool(self.with_widths())

    def with_widths(self) -> list[str]:
        """Returns the levels that give elements a width of their own, by their names in machine files."""
        return [level.name.lower() for level in self.levels if level.bits]

    def with_formats(self) -> list[str]:
        """Returns the levels that store tensors with zeros in formats of their own, by their names in machine
        files.
        """
        return [level.name.lower() for level in self.levels if level.formats]

    def with_ports(self) -> list[str]:
        """Returns the levels that say which of their ports serves what, or have a rate of writes of their
        own, by their names in machine files.
        """
        return [level.name.lower() for level in self.levels if not isinstance(level.ports, str)]

    def with_latency(self) -> list[str]:
        """Returns the levels whose first words take time, by their names in machine files."""
        return [level.name.lower() for level in self.levels if level.latency_ns]

    def with_sharing(self) -> list[str]:
        """Returns the levels of which PEs along some dimension of an array share one instance, by their names
        in machine files.
        """
        named = {name for f in self.fanouts for levels in f.shared for name in levels}
        return [level.name.lower() for level in self.levels if level.name in named]

    def sharing_roles(self, dim: str) -> frozenset[str]:
        """Returns the roles of the tensors of which PEs along a dimension want the same elements, since they
        share an instance of a level that may keep them.
        """
        return frozenset(
            of
            for f in self.fanouts
            if f.shared and dim in dict(f.dims)
            for level in self.levels
            if dim in f.shared_along(level.name)
            for of in level.may_keep
        )

    def models_layout(self) -> bool:
        """True if layouts cost at any level."""
        return bool(self.layout_levels())

    def levels_of_pes(self) -> frozenset[str]:
        """Names of the levels of which each MAC unit has its own instance: they stand inside all arrays, and
        are shared along none of their dimensions.
        """
        outside = max((f.outside for f in self.fanouts), default=0)
        return frozenset(
            level.name
            for level in self.levels[outside:]
            if not any(f.shared_along(level.name) for f in self.fanouts)
        )

    def level_index(self) -> dict[str, int]:
        """Returns the number of each level by its name; 0 is the outermost."""
        return {level.name: v for v, level in enumerate(self.levels)}

    def layout_levels(self) -> frozenset[str]:
        """Names of the levels that describe lines, rows or banks."""
        return frozenset(level.name for level in self.levels if level.access)

    def without(self, *roles: FieldRole) -> Arch:
        """Returns the machine with fields of these roles blanked out: machines that differ in them alone
        become equal.
        """
        return self.map_fields(roles, _blank)

    def with_more_leakage(self, pj_per_cycle: float) -> Arch:
        """Returns the machine with more leakage, by so many pJ per cycle."""
        more_mw = pj_per_cycle * self.clock_ghz
        return replace(
            self, compute=replace(self.compute, vector_leak_mw=self.compute.vector_leak_mw + more_mw)
        )

    def map_fields(self, roles: Sequence[FieldRole], rule: Callable[[FieldRole, Any], Any]) -> Arch:
        """Returns the machine with every field of these roles replaced by rule(role, value)."""
        return replace(
            map_fields(self, roles, rule),
            levels=tuple(map_fields(level, roles, rule) for level in self.levels),
            fanouts=tuple(map_fields(f, roles, rule) for f in self.fanouts),
            compute=map_fields(self.compute, roles, rule),
        )

    def values(self, wanted: Iterable[Slot]) -> list[Any]:
        """Returns the values of fields, in the order of the slots."""
        nodes = {"levels": self.levels, "fanouts": self.fanouts, "compute": (self.compute,), "": (self,)}
        return [getattr(nodes[slot.nodes][slot.number], slot.field) for slot in wanted]

    def with_values(self, wanted: Iterable[Slot], values: Iterable[Any]) -> Arch:
        """Returns the machine with the fields of these slots replaced, values in the same order."""
        changes: dict[tuple[str, int], dict[str, Any]] = {}
        for slot, value in zip(wanted, values, strict=True):
            changes.setdefault((slot.nodes, slot.number), {})[slot.field] = value
        return replace(
            self,
            levels=tuple(
                replace(level, **changes.get(("levels", v), {})) for v, level in enumerate(self.levels)
            ),
            fanouts=tuple(replace(f, **changes.get(("fanouts", i), {})) for i, f in enumerate(self.fanouts)),
            compute=replace(self.compute, **changes.get(("compute", 0), {})),
            **changes.get(("", 0), {}),
        )

    def components(self) -> dict[str, int]:
        """Returns the instances of each level, of the MAC units and of the vector unit, by name; of each
        compute, where there are several.
        """
        counts = [self.instances(v) for v in range(len(self.levels))]
        levels = dict(zip((level.name for level in self.levels), counts, strict=True))
        if self.units:
            return levels | {one.compute.name: one.instances(len(one.levels)) for one in self.units}
        return levels | {"MAC": self.instances(len(self.levels)), "VECTOR": 1}

    def areas_mm2(self) -> tuple[float, ...]:
        """Returns the silicon area of each component, all instances. Off-chip DRAM has none."""
        levels = [level.area_mm2 * self.instances(v) for v, level in enumerate(self.levels)]
        if self.units:
            return (*levels, *(one.compute.area_mm2 * one.instances(len(one.levels)) for one in self.units))
        mac_units = self.compute.area_mm2 * self.instances(len(self.levels))
        return (*levels, mac_units, self.compute.vector_area_mm2)

    def area_mm2(self) -> float:
        """Returns the silicon area of the machine."""
        return sum(self.areas_mm2())

    def leaks_mw(self) -> tuple[float, ...]:
        """Returns the static power of each component in mW, all instances."""
        levels = [level.leak_mw * self.instances(v) for v, level in enumerate(self.levels)]
        if self.units:
            return (*levels, *(one.compute.leak_mw * one.instances(len(one.levels)) for one in self.units))
        mac_units = self.compute.leak_mw * self.instances(len(self.levels))
        return (*levels, mac_units, self.compute.vector_leak_mw)

    def leak_mw(self) -> float:
        """Returns the static power of the machine in mW."""
        return sum(self.leaks_mw())

    def peak_tops(self) -> float:
        """Returns the rate of all MAC units that work in every cycle, in TOPS."""
        return OPS_PER_MAC * self.peak_gmacs() / 1e3

    def peak_gmacs(self) -> float:
        """Returns the rate of all MAC units that work in every cycle, in GMAC/s: of the fastest
        compute, where there are several, for one works at a time.
        """
        if self.units:
            return max(one.peak_gmacs() for one in self.units)
        return self.instances(len(self.levels)) * self.compute.ops_per_cycle * self.clock_ghz

    def slow_levels(self) -> tuple[str, ...]:
        """Returns the levels whose arrays are slower than the clock, as `GBUF (2 cycles)`. Their `bandwidth`
        accounts for it.
        """
        return tuple(
            f"{level.name} ({level.access_cycles} cycles)" for level in self.levels if level.access_cycles > 1
        )


class Slot(NamedTuple):
    """A field of a machine."""

    nodes: str  # levels, fanouts, compute; "": a field of Arch itself
    number: int  # index of the node among these
    field: str


def fields_of(node: type, *roles: FieldRole) -> tuple[str, ...]:
    """Returns the field names of a node type that have these roles, in the order of roles, then of
    declaration.

    Raises TypeError for a field without a role, which comparisons of machines would miss.
    """
    return _fields_of(node, roles)


@lru_cache
def _fields_of(node: type, roles: tuple[FieldRole, ...]) -> tuple[str, ...]:
    if without_role := [declared.name for declared in fields(node) if "role" not in declared.metadata]:
        raise TypeError(f"{node.__name__}.{without_role[0]} has no role; declare it with metadata=role(...)")
    return tuple(
        declared.name
        for role_wanted in roles
        for declared in fields(node)
        if declared.metadata["role"] == role_wanted
    )


def slots(arch: Arch, *roles: FieldRole) -> tuple[Slot, ...]:
    """Returns the fields of these roles: of levels, fan-outs, compute, then Arch; within a node in the order
    of `fields_of`.
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
        for nodes, types in kinds
        for number, kind in enumerate(types)
        for name in fields_of(kind, *roles)
    )


Part = TypeVar("Part", Level, Fanout, Compute, Arch)


def map_fields(node: Part, roles: Sequence[FieldRole], rule: Callable[[FieldRole, Any], Any]) -> Part:
    """Returns one node with every field of these roles replaced by rule(role, value)."""
    return replace(
        node, **{name: rule(of, getattr(node, name)) for of in roles for name in fields_of(type(node), of)}
    )


def structure_of(node: Part) -> Part:
    """Returns one node with prices, rates, clock, area and names blanked out (`Arch.structure`)."""
    return map_fields(node, (*COST_ROLES, "area", "label"), _blank)


def family_of(node: Part) -> Part:
    """Returns one node without the fields in which machines of a family differ (`Arch.family`). The time that
    a systolic array takes to fill depends on its PEs, so these stay.
    """
    blanked = structure_of(node)
    return blanked if isinstance(node, Fanout) and node.systolic else map_fields(blanked, ("size",), _blank)


def _blank(of: FieldRole, value: Any) -> Any:
    """Returns the blank value of a field. A rate that exists stays distinct from None."""
    if of in ("price", "leakage", "area", "network"):
        return 0.0
    if of in ("rate", "clock"):
        return None if value is None else 1.0
    if of == "size" and isinstance(value, tuple):
        return tuple((name, 1) for name, _ in value)
    return {"label": "", "tiles": Tiling()}.get(of)  # None for a capacity and for the role layout
