"""Hardware spaces: axes over the fields of a machine, the machines by index, and constraints. This module
only enumerates.

The index is a mixed-radix number: axes in the order of the study, the last one fastest, as itertools.product
counts. The file is long because axes, overrides and constraints read the same fields and units.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from math import copysign, inf, nan, nextafter, prod
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hw import component, die
from hw.arch import (
    RATE_UNITS,
    SIZE_UNITS,
    Arch,
    Array,
    Bytes,
    Compute,
    FieldRole,
    Level,
    Machine,
    MacUnit,
    Memory,
    Node,
    Rate,
    Tiling,
    Volts,
    fields_of,
    plain_number,
)
from hw.machine import NODE_TYPES
from hw.voltage import LEAST
from workloads.meant import MEANINGS
from workloads.renamed import key_now

Value = int | float | str | bool
MAX_VALUES = 100_000  # values of one axis; a range with more is most likely a wrong step
TOTALS = ("area_mm2", "leak_mw")  # numbers of a whole machine that are known without solving
HEAD = (
    "clock_mhz",
    "node_nm",
    "cell",
    "vdd",
    "word_bits",
    "overlap",
)  # fields of Machine that belong to no node
OF_FILES = ("name", "dims", "in_core", "takes")  # fields of nodes that no axis names
# roles of fields that component tables fill where a machine file does not
TABULATED: tuple[FieldRole, ...] = ("price", "leakage", "area")
CONSTANTS = ("align", "pes", "macs", "vector")  # numbers of the tiling block
ARRAY_WORDS = ("", "array", "pe", "pes", "pe_array", "mesh", "spatial")  # words for an array of PEs
SIZE_WORDS = ("pe", "pes", "num_pes", "n_pes", "pe_count", "macs", "shape", "dims")  # for its dimensions
# words for memories, by their place from outside to inside; the last one is that of a PE
MEMORY_WORDS = {
    **dict.fromkeys(("dram", "hbm", "ddr", "main_memory", "offchip", "memory"), 0),
    **dict.fromkeys(("glb", "gbuf", "l2", "sram", "buffer", "global_buffer", "scratchpad", "spm"), 1),
    **dict.fromkeys(("rf", "reg", "regs", "regf", "regfile", "register_file", "registers"), -1),
}
STEP = re.compile(r"^x\s*(\d+(?:\.\d+)?)$")


class SpaceError(ValueError):
    """A faulty space or constraint: one line per fault, `key = value why; fix`."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of the machine and the values that it takes. Sizes are in bytes, bandwidths in GB/s, other
    numbers in the unit of the machine file.
    """

    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """The machines that differ from a template in some fields: the product of the axes, the last one
    fastest.
    """

    template: Machine
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """How many machines the space has."""
        return prod(len(axis.values) for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Unbuildable:
    """A machine that cannot be built, and the reason in one line."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def parse(template: Machine, raw: object, prefix: str = "space") -> Space:
    """Returns the space of a study's `space:`. Values of a field are a list, {from, to, step: x2 | number |
    "16 KiB"}, {linear: [from, to, count]} or {log: [from, to, count]}.

    Raises SpaceError with all faults; keys are shown as <prefix>.<key>.
    """
    if not isinstance(raw, Mapping) or not raw:
        raise SpaceError(
            f"{prefix} = {component.show(raw)[:40]} is empty; name at least one field, e.g. array.x: [8, 16]"
        )
    axes, faults = [], []
    for key, given in raw.items():
        try:
            axes.append(Axis(str(key), _values(_kind(template, str(key)), given, str(key))))
        except SpaceError as fault:
            faults += [f"{prefix}.{key} {line}" for line in str(fault).splitlines()]
    if faults:
        raise SpaceError("\n".join(faults))
    return Space(template, tuple(axes))


def override(template: Machine, given: Mapping[str, object]) -> Machine:
    """Returns the machine with other values, written as in a machine file ("256 KiB"). Raises SpaceError with
    all faults.
    """
    values, faults = {}, []
    for key, value in given.items():
        try:
            values[key] = _value(_kind(template, key), value, key)
        except SpaceError as fault:
            faults.append(f"{key} {fault}")
    if faults:
        raise SpaceError("\n".join(faults))
    return apply(template, values)


def keys(template: Machine) -> dict[str, Any]:
    """Returns every field that an axis may name, and its type."""
    found = {
        f: _bare(hint)
        for f, hint in _field_types(Machine).items()
        if f not in ("name", "nodes", "tiling", "mapping")
    }
    found |= {f"tiling.{f}": _bare(hint) for f, hint in _field_types(Tiling).items() if f in CONSTANTS}
    for node in template.nodes:
        kind: type = type(node)
        hints = _field_types(kind)
        if isinstance(node, Array):
            found |= {
                f"{node.name}.{dim}": _bare(get_args(get_args(hints["dims"])[0])[1]) for dim in node.dims
            }
        found |= {f"{node.name}.{f}": _bare(hint) for f, hint in hints.items() if f not in OF_FILES}
    return found


@lru_cache
def _field_types(kind: type) -> dict[str, Any]:
    """Returns the annotated type of each field: evaluating them takes most of the reading of a space."""
    return get_type_hints(kind, include_extras=True)


def _bare(hint: Any) -> Any:
    """Returns the type without its `| None`: None is no value of an axis."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(hint) else hint


def _kind(template: Machine, key: str) -> Any:
    """Returns the type of the field that a key names. Raises SpaceError, with advice, for unknown keys."""
    known = keys(template)
    if new_name := key_now(key, (name.rpartition(".")[2] for name in known)) if key not in known else "":
        raise SpaceError(f"has a new name; write {new_name}")
    if own := [name for name in known if name.startswith(f"{key}.")]:
        raise SpaceError(f"is a component of machine {template.name}; write one of its fields, e.g. {own[0]}")
    if key not in known:
        meant = _field_meant(key, template) or _dimension_meant(key, template)
        prefix = f"{key.rpartition('.')[0]}."
        of_node = [name for name in known if prefix != "." and name.startswith(prefix)]
        advice = f"did you mean {meant}?" if meant else _closest_field(key, of_node or list(known))
        raise SpaceError(f"is no field of machine {template.name}; {advice}")
    return known[key]


def _field_meant(key: str, template: Machine) -> str:
    """Returns the field that a key in another tool's word means, or those of other components that have it;
    "" where there are none, or many.
    """
    node, _, field = key.rpartition(".")
    known = keys(template)
    memories = [one.name for one in template.nodes if isinstance(one, Memory)]
    if node.lower() in MEMORY_WORDS and not any(one.name == node for one in template.nodes):
        node = memories[min(MEMORY_WORDS[node.lower()], len(memories) - 1)]
    own_names = (field, *MEANINGS.get(field.lower(), ()))
    own = [name for name in (f"{node}.{one}".lstrip(".") for one in own_names) if name in known]
    same_field = [name for name in known if "." in name and name.rpartition(".")[2] in own_names]
    return own[0] if own else " or ".join(same_field) if len(same_field) <= 3 else ""


def _dimension_meant(key: str, template: Machine) -> str:
    """Returns the sizes of a machine's arrays that a key such as array.x may mean, where the machine calls
    its arrays or their dimensions otherwise; "" where it means none, or many.
    """
    node, _, field = key.rpartition(".")
    arrays = {one.name: one for one in template.nodes if isinstance(one, Array)}
    if node not in arrays and node not in ARRAY_WORDS:
        return ""
    # dimensions have names of one letter
    if field.lower() not in SIZE_WORDS and min(map(len, MEANINGS.get(field.lower(), (field,)))) > 1:
        return ""
    own = [arrays[node]] if node in arrays else [*arrays.values()]
    dims = [f"{one.name}.{dim}" for one in own for dim in one.dims]
    return " or ".join(dims) if len(dims) <= 4 else ""


def _closest_field(key: str, known: Sequence[str]) -> str:
    """Returns the advice for a misspelt field. Fields of one component are compared without its name, which
    makes all of them similar.
    """
    node, dot, field = key.rpartition(".")
    if not all(name.startswith(f"{node}.") for name in known):
        return component.closest_name(key, known)
    fields_known = [name.removeprefix(f"{node}.") for name in known]
    return component.closest_name(field, fields_known).replace("did you mean ", f"did you mean {node}{dot}")


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _value(kind: Any, given: object, key: str = "") -> Value:
    """Returns a value as the field's type `kind` reads it. Raises SpaceError if it does not fit."""
    try:
        value: Value = _adapter(kind).validate_python(given)
    except ValidationError as error:
        detail = error.errors()[0]
        raise SpaceError(
            component.explain(key, detail["type"], given, detail["msg"]).removeprefix(key).strip()
        ) from None
    return value


def _values(kind: Any, given: object, key: str = "") -> tuple[Value, ...]:
    """Returns the values of an axis, given as a list or a range, in the field's type `kind`."""
    if isinstance(given, Mapping):
        return _distinct(_range(kind, given))
    given_range = _range_meant(kind, given[0] if isinstance(given, list) and len(given) == 1 else given)
    if given_range:
        raise SpaceError(f"= {component.show(given)} is no list of values; write {given_range}")
    if not isinstance(given, list):
        raise SpaceError(
            f"= {component.show(given)} is no list; write [{given}] or {{from: ..., to: ..., step: x2}}"
        )
    if not given:
        raise SpaceError("= [] leaves no machine; give at least one value")
    values, faults = [], []
    for item in given:
        try:
            values.append(_value(kind, item, key))
        except SpaceError as fault:
            faults.append(str(fault))
    if faults:
        raise SpaceError("\n".join(faults))
    if any(isinstance(value, tuple) for value in values):
        raise SpaceError(
            f"= {component.show(given)} holds a list, no value of a column; set it in the machine file"
        )
    return _distinct(values)


def _range_meant(kind: Any, given: object) -> str:
    """Returns the range that a text such as 8..32 means; "": it means none."""
    found = re.fullmatch(r"(\d[^.]*?)\s*\.\.+\s*(\d[^.]*)", given) if isinstance(given, str) else None
    is_number = get_args(kind)[:1] in ((int,), (float,))
    return f"{{from: {found[1]}, to: {found[2]}, step: x2}}" if found and is_number else ""


def _distinct(values: Sequence[Value]) -> tuple[Value, ...]:
    repeated = next((v for v, n in Counter(values).items() if n > 1), None)
    if repeated is not None:
        raise SpaceError(f"= {component.show(repeated)} stands twice; keep one")
    return tuple(values)


def _range(kind: Any, given: Mapping[Any, Any]) -> list[Value]:
    if get_args(kind)[:1] not in ((int,), (float,)):
        raise SpaceError("= a range, but the field is no number; list its values")
    if set(given) == {"from", "to", "step"}:
        low, high = _ends(kind, given["from"], given["to"])
        return _typed(kind, _stepped(low, high, *_step(kind, given["step"])))
    scale = next(iter(given), None)
    if len(given) != 1 or scale not in ("linear", "log"):
        shown = ", ".join(map(str, given)) or "none"
        raise SpaceError(
            f"has keys {shown}; a range is {{from, to, step}}, {{linear: [from, to, count]}} or "
            f"{{log: [from, to, count]}}"
        )
    ends = given[scale]
    if (
        not isinstance(ends, list)
        or len(ends) != 3
        or type(ends[2]) is not int
        or not 2 <= ends[2] <= MAX_VALUES
    ):
        raise SpaceError(f"has {scale} = {ends}; write {scale}: [from, to, count] with a count of 2 or more")
    low, high = _ends(kind, *ends[:2])
    spread = _spread(low, high, ends[2], scale == "log")
    return _typed(kind, [Fraction(round(v)) for v in spread] if get_args(kind)[0] is int else spread)


def _ends(kind: Any, low: object, high: object) -> tuple[Fraction, Fraction]:
    ends = _number(kind, low), _number(kind, high)
    if ends[0] > ends[1]:
        raise SpaceError(f"has from = {low} above to = {high}; swap them")
    return ends


def _number(kind: Any, given: object) -> Fraction:
    value = _value(kind, given)
    if value == inf:
        raise SpaceError("= inf is no end of a range; list the values")
    return Fraction(str(value))


def _step(kind: Any, given: object) -> tuple[Fraction, bool]:
    """Returns the step of a range, and whether it is a factor (x2)."""
    factor = STEP.match(given) if isinstance(given, str) else None
    if factor:
        if Fraction(factor[1]) <= 1:
            raise SpaceError(f"has step = {given}, which does not grow; use a factor above 1, e.g. x2")
        return Fraction(factor[1]), True
    try:
        return _number(kind, given), False
    except SpaceError as fault:
        raise SpaceError(f"has step {fault}; a factor is written x2") from None


def _stepped(low: Fraction, high: Fraction, step: Fraction, factor: bool) -> list[Fraction]:
    found: list[Fraction] = []
    value = low
    while value <= high:
        if len(found) == MAX_VALUES or step <= 0:
            raise SpaceError(f"has more than {MAX_VALUES} values; raise step")
        found.append(value)
        value = value * step if factor else value + step
    return found


def _spread(low: Fraction, high: Fraction, count: int, log: bool) -> list[Fraction]:
    """Returns count values from low to high, both included."""
    if not log:
        return [low + (high - low) * i / (count - 1) for i in range(count)]
    inner = [Fraction(float(low) * float(high / low) ** (i / (count - 1))) for i in range(1, count - 1)]
    return [low, *inner, high]


def _typed(kind: Any, found: Sequence[Fraction]) -> list[Value]:
    """Returns the numbers in the field's own type. Raises SpaceError where an integer field would get a
    fraction.
    """
    if get_args(kind)[0] is float:
        return [float(v) for v in found]
    fractional = next((v for v in found if v.denominator != 1), None)
    if fractional is not None:
        raise SpaceError(
            f"steps onto {float(fractional):g}, but the field is a whole number; change step, or "
            "list the values"
        )
    return [int(v) for v in found]


def values(space: Space, index: int) -> dict[str, Value]:
    """Returns the value on each axis of machine `index`, 0 <= index < space.size. Raises IndexError."""
    if not 0 <= index < space.size:
        raise IndexError(f"machine {index} of a space of {space.size}")
    digits = []
    for axis in reversed(space.axes):
        index, digit = divmod(index, len(axis.values))
        digits.append(axis.values[digit])
    return {axis.key: value for axis, value in zip(space.axes, reversed(digits), strict=True)}


def index_of(space: Space, wanted: Mapping[str, Value]) -> int:
    """Returns the index of the machine with these values: inverse of `values`. Raises ValueError for a value
    that is not on its axis.
    """
    index = 0
    for axis in space.axes:
        index = index * len(axis.values) + axis.values.index(wanted[axis.key])
    return index


def apply(template: Machine, chosen: Mapping[str, Value]) -> Machine:
    """Returns the template with the chosen fields replaced."""
    changes: dict[str, dict[str, Any]] = {}
    for key, value in chosen.items():
        node_name, _, field = key.rpartition(".")
        changes.setdefault(node_name, {})[field] = value
    nodes = tuple(
        _changed(node, changes[node.name]) if node.name in changes else node for node in template.nodes
    )
    return replace(
        template,
        nodes=nodes,
        tiling=replace(template.tiling, **changes.get("tiling", {})),
        **changes.get("", {}),
    )


def _changed(node: Node, given: Mapping[str, Any]) -> Node:
    if not isinstance(node, Array):
        return replace(node, **given)
    dims = {dim: given.get(dim, size) for dim, size in node.dims.items()}
    return replace(node, dims=dims, **{field: value for field, value in given.items() if field not in dims})


def written(data: Mapping[str, Any], template: Machine, chosen: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the document of a machine file with the chosen fields replaced, as `apply` does to its machine.

    data: the document that the template was read from
    """
    found, kinds = deepcopy(dict(data)), keys(template)
    # an entry begins with its role: {memory: gbuf, ...}
    entries = {next(entry[role] for role in NODE_TYPES if role in entry): entry for entry in found["nodes"]}
    for key, value in chosen.items():
        node, _, field = key.rpartition(".")
        entry = found.setdefault("tiling", {}) if node == "tiling" else entries[node] if node else found
        block = entry["dims"] if field in entry.get("dims", ()) else entry
        block[field] = _as_written(kinds[key], value)
    return found


def _as_written(kind: Any, value: Value) -> Value:
    """Returns a value as a machine file says it: sizes and bandwidths with their units."""
    if kind == Volts and value == LEAST:
        return "least"
    return component.show_bytes(float(value)) if kind == Bytes else f"{value} GB/s" if kind == Rate else value


def is_least(space: Space, key: str) -> bool:
    """True if some value of this axis is `least`, so that each machine has a value of its own."""
    return key == "vdd" and any(axis.key == key and LEAST in axis.values for axis in space.axes)


def is_ever_set(space: Space, fields: Collection[str]) -> bool:
    """True if one of these fields is neither 0 nor None in a node of any machine of the space."""
    varied = {axis.key: axis.values for axis in space.axes}
    return any(
        any(varied.get(f"{node.name}.{name}", (getattr(node, name, None),)))
        for node in space.template.nodes
        for name in fields
    )


def decode(space: Space, index: int) -> Arch | Unbuildable:
    """Returns the Arch of machine `index`; Unbuildable, with the reason, where a value is outside of a
    component table.
    """
    try:
        return component.build(apply(space.template, values(space, index)))
    except component.ComponentError as fault:
        return Unbuildable("; also ".join(str(fault).splitlines()))


def static_values(space: Space, index: int, arch: Arch) -> dict[str, Value]:
    """Returns what is known of a machine without solving: all fields by key, those that the file leaves out
    from the tables (NaN where these have none), area_mm2, leak_mw, die_cost_usd.
    """
    return built_values(apply(space.template, values(space, index)), arch)


def built_values(spec: Machine, arch: Arch) -> dict[str, Value]:
    """`static_values` of a machine that is no point of a space."""
    found = _fields(spec)
    levels = iter(arch.levels)
    computes = {one.compute.name: one.compute for one in arch.units}
    for node in spec.nodes:
        if isinstance(node, Memory):
            level = next(levels)
            per_gbps = 8 / level.width_bits / arch.clock_ghz  # actions per clock cycle that 1 GB/s is
            found |= _tabulated(node, level) | {
                f"{node.name}.capacity": inf if level.capacity_bits is None else level.capacity_bits / 8,
                f"{node.name}.actions_per_cycle": level.bandwidth,
                f"{node.name}.bandwidth": level.bandwidth / per_gbps,
            }
        elif isinstance(node, MacUnit):
            found |= _tabulated(node, computes.get(node.name.upper(), arch.compute))
    if arch.vdd is not None:
        found["vdd"] = arch.vdd
    found["die_cost_usd"] = die.cost_usd(arch.area_mm2(), spec.node_nm or nan)
    return found | {"word_bits": arch.word_bits, "area_mm2": arch.area_mm2(), "leak_mw": arch.leak_mw()}


def _tabulated(node: Node, built: Level | Compute) -> dict[str, Value]:
    own = {f.name for f in fields(node)}
    return {f"{node.name}.{f}": getattr(built, f) for f in fields_of(type(built), *TABULATED) if f in own}


def static_names(template: Machine) -> frozenset[str]:
    """Returns the names that `static_values` knows and that are numbers: constraints on these need no
    solving.
    """
    return frozenset(
        key for key, kind in keys(template).items() if get_args(kind)[:1] in ((int,), (float,))
    ) | {*TOTALS, "die_cost_usd"}


def _fields(spec: Machine) -> dict[str, Value]:
    found: dict[str, Any] = {key: getattr(spec, key) for key in HEAD} | {
        f"tiling.{key}": getattr(spec.tiling, key) for key in CONSTANTS
    }
    for node in spec.nodes:
        if isinstance(node, Array):
            found |= {f"{node.name}.{dim}": size for dim, size in node.dims.items()}
        found |= {
            f"{node.name}.{f.name}": getattr(node, f.name) for f in fields(node) if f.name not in OF_FILES
        }
    return {key: nan if value is None else value for key, value in found.items()}


TOKEN = re.compile(
    r"(?P<size>(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]iB|[MGT]B/s|B)\b)|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
    r"|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\[[^\]]*\])?)"
)


def _divide(a: float, b: float) -> float:
    return a / b if b else copysign(inf, a) if a else nan


def _strictly(excess: float) -> float:
    """Returns the excess of a strict comparison: equality violates it by the smallest number above 0."""
    return excess or nextafter(0.0, 1.0)


ARITHMETIC: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
}
# comparison -> how far it is missed, in its own unit; <= 0: it is met. Equal sides first: inf - inf is NaN
EXCESS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.LtE: lambda a, b: a - b if a != b else 0.0,
    ast.GtE: lambda a, b: b - a if a != b else 0.0,
    ast.Lt: lambda a, b: _strictly(a - b if a != b else 0.0),
    ast.Gt: lambda a, b: _strictly(b - a if a != b else 0.0),
    ast.Eq: lambda a, b: abs(a - b) if a != b else 0.0,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A comparison (or chain of comparisons) of sums and products."""

    text: str
    # the fields and metrics it reads; `latency_ns[detector]` is a metric of one workload
    names: frozenset[str]


def constraint(text: str) -> Constraint:
    """Returns the constraint of a text such as "area_mm2 <= 12", "gbuf.capacity <= 1 MiB" or
    "latency_ns[detector] <= 5e6".

    Allowed are + - * /, parentheses and < <= > >= ==, also chained. Raises SpaceError in one line.
    """
    _, names = _parsed(text)
    if not names:
        raise SpaceError(f'constraint "{text}" names no field and no metric; write e.g. area_mm2 <= 12')
    return Constraint(text, frozenset(names))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[ast.Compare, tuple[str, ...]]:
    """Returns the syntax tree and the names. Name i is _i in the tree; sizes are plain numbers."""
    names: list[str] = []

    def plain(match: re.Match[str]) -> str:
        if match["size"]:
            return repr(float(match["amount"]) * (SIZE_UNITS | RATE_UNITS)[match["unit"]])
        if match["number"]:
            return match["number"]
        if match["name"] not in names:
            names.append(match["name"])
        return f" _{names.index(match['name'])} "

    if len(text) > 500:
        raise SpaceError(
            f'constraint "{text[:40]}..." has {len(text)} characters; split it into several of at most 500'
        )
    try:
        tree = ast.parse(TOKEN.sub(plain, text).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise SpaceError(f'constraint "{text}" is no comparison; {_advice(text)}') from None
    if not isinstance(tree, ast.Compare) or not all(type(op) in EXCESS for op in tree.ops):
        raise SpaceError(
            f'constraint "{text}" compares nothing; write e.g. area_mm2 <= 12, with <, <=, >, >= or =='
        )
    disallowed = next(
        (n for side in (tree.left, *tree.comparators) for n in ast.walk(side) if not _allowed(n)), None
    )
    if disallowed is not None:
        raise SpaceError(
            f'constraint "{text}" holds {type(disallowed).__name__}; use only numbers, names, + - * / '
            "and brackets"
        )
    return tree, tuple(names)


def _advice(text: str) -> str:
    """Returns advice for a text that is no comparison: operators in the right order (=< to <=), numbers
    without units.
    """
    reordered = re.sub(r"=\s*([<>])", r"\1=", text)
    names = [match["name"].partition("[")[0] for match in TOKEN.finditer(text) if match["name"]]

    def bare(match: re.Match[str]) -> str:
        return next(filter(None, (plain_number(name, match[0]) for name in names)), match[0])

    plain = re.sub(r"\b\d+(?:\.\d+)?\s*[A-Za-z]+2?\b", bare, reordered)
    if plain == text:
        return "write e.g. array.x >= array.y"
    return (
        f"did you mean {plain}?"
        if plain == reordered
        else f"numbers are plain, in the unit that the name ends with: {plain}"
    )


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return (
        isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name, ast.expr_context))
        or type(node) in ARITHMETIC
        or isinstance(node, (ast.USub, ast.UAdd))
    )


def violation(checked: Constraint, known: Mapping[str, Value]) -> float:
    """Returns how far the comparison is missed, in its own unit; <= 0: it is met; inf: a side has no value (0
    / 0). known: a value for each name of the constraint.
    """
    tree, names = _parsed(checked.text)
    numbers = {f"_{i}": known[name] for i, name in enumerate(names)}
    sides = [_evaluate(side, numbers) for side in (tree.left, *tree.comparators)]
    excess = [EXCESS[type(op)](a, b) for op, a, b in zip(tree.ops, sides, sides[1:], strict=False)]
    return max(inf if e != e else e for e in excess)


def _evaluate(node: ast.expr, numbers: Mapping[str, Value]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return float(numbers[node.id])
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, numbers)
        return -value if isinstance(node.op, ast.USub) else value
    assert isinstance(node, ast.BinOp)
    return ARITHMETIC[type(node.op)](_evaluate(node.left, numbers), _evaluate(node.right, numbers))
