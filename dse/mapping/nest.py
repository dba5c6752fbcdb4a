"""Mappings: one loop nest with storage nodes per einsum (LoopTree notation, docs/model.md).

    layout DRAM A: M/16 K m16            (where a layout is named: else row-major)
    share GLB B over Y                   (PEs along Y hold a part each of their tile of B, and pass the
                                         parts round)
    store DRAM A B C
    for m in [0:4) tile 16               (4 trips, each leaves a tile of 16 inside)
      store GLB A B C
      parfor n in [0:8) tile 1 over Y    (spatial: 8 PEs along Y)
        mac                            (on machines of several computes: mac on NAME)

A loop names the tile that it leaves inside. Its trip count follows from the tile, so a text may omit it; a
trip count that contradicts the tile is a fault. The position of a storage node defines its reuse: its tile is
fetched once per iteration of every loop above it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import gcd, prod
from pathlib import Path
from typing import Any

from dse.mapping.conversion import COPY_NAME
from hw.arch import Arch, Compute, Level, Memory, Stored
from workloads import document
from workloads.einsum import (
    Einsum,
    Projection,
    in_groups,
    min_widths,
    packed_result_fault,
    padded_rows_fault,
    stored_as,
    whole_slots,
)
from workloads.meant import STRUCTURED
from workloads.renamed import ENTRIES, line_now

TRIPS = r"(?:\s+in\s+\[0:(\d+)\))?"
LOOP = re.compile(rf"^for\s+(\w+){TRIPS}\s+tile\s+(\d+)$")
SPATIAL = re.compile(rf"^parfor\s+(\w+){TRIPS}\s+tile\s+(\d+)\s+over\s+(\w+)$")
LAYOUT = re.compile(r"^layout\s+(\w+)\s+(\w+)\s*:\s*(\S.*)$")
SHARE = re.compile(r"^share\s+(\w+)\s+(\w+)\s+over((?:\s+\w+)+)$")
STORE = re.compile(r"^store\s+(\w+)((?:\s+\w+)+)$")
# loops and storage nodes of a mapping, more than any einsum needs; protects against malformed files
MAX_NODES = 1000
RULED_OUT = "mappings that keep the rules"  # `Infeasible.unit` where rules exclude every mapping
NO_TILES = "SMAUG"  # `Infeasible.level` where SMAUG's optimizers take no such einsum
NON_NEST = "outside the nest space"  # first words of a mapping's text that is no loop nest
MAC = re.compile(r"^mac(?: on (\w+))?$")
FORMS = (
    '"layout LEVEL TENSOR: TEXT", "share LEVEL TENSOR over DIM...", "store LEVEL TENSOR...", "for RANK in '
    '[0:TRIPS) tile N", "parfor RANK tile N over DIM", "mac", "mac on COMPUTE"'
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over a rank in tiles."""

    rank: str
    tile: int
    over: str = ""  # fan-out dimension of a spatial loop; "": temporal
    # trip count as stated in a text; 0: not stated. It follows from the tiles, so it is not compared.
    trips: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Store:
    """A storage node: one tensor at one level."""

    level: str
    tensor: str


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The layout of a tensor at a level: at the outermost level of the whole tensor, elsewhere of the tile
    there.
    """

    level: str
    tensor: str
    text: str  # in the notation of dse/layout/text.py


@dataclass(frozen=True, slots=True)
class Rotated:
    """A tile shared out among PEs: PEs along `dims` that would hold copies hold a part each, and pass the
    parts round (dse/sim/levels/rotation.py).
    """

    level: str
    tensor: str
    dims: tuple[str, ...]  # fan-out dimensions


@dataclass(frozen=True, slots=True)
class Mapping:
    """Loops and storage nodes, outermost first; compute stands below the last node."""

    nodes: tuple[Loop | Store, ...]
    # of a mapping that is no loop nest: its text (NON_NEST, the reason, and what it does); nodes are then
    # empty
    non_nest_text: str = ""
    layouts: tuple[TensorLayout, ...] = ()  # tensors and levels not named are row-major
    shares: tuple[Rotated, ...] = ()  # sorted by level and tensor
    # number of nodes at the beginning that are shared with other einsums of a segment; their tiles do not
    # sink below the loops of this einsum; 0: none
    fork: int = 0
    # fills bring in whole tiles, whatever is known of a sparse operand's pattern (terms.gathered)
    whole_tiles: bool = field(default=False, compare=False, repr=False)
    unit: str = ""  # the compute that it is for, of a machine with several (`Arch.units`)

    def __str__(self) -> str:
        return "\n".join(nest_lines(self))


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why there is no mapping, returned as a value instead of raised. need_bytes and have_bytes are in
    `unit`.
    """

    level: str
    need_bytes: int
    have_bytes: int
    einsum: str
    unit: str = "bytes"  # bytes; for a fan-out, PEs

    def __str__(self) -> str:
        if self.unit == RULED_OUT:
            return f"{self.einsum}: no mapping keeps {self.level}; leave a rule out of mapping, or loosen it"
        if self.level == NO_TILES:
            return f"{self.einsum}: SMAUG has no {self.unit}; leave solver.tiling out"
        return f"{self.einsum}: {self.level} needs {self.need_bytes} {self.unit}, has {self.have_bytes}"


def mapping_key(einsum_key: str, mapping: Mapping) -> str:
    """Returns the content key of a mapping of an einsum; equal keys mean equal counts of actions.

    einsum_key: key of the einsum and of anything else that the counts depend on
    """
    return hashlib.sha256(f"{einsum_key}\n{mapping}".encode()).hexdigest()[:16]


def to_text(mapping: Mapping, e: Einsum) -> str:
    """Returns the text of a mapping of an einsum, with trip counts."""
    return "\n".join(nest_lines(mapping, e.sizes()))


def loop_text(loop: Loop, tile_of: dict[str, int] | None) -> str:
    """Returns a loop as text.

    tile_of: tile of each rank outside of the loop; is updated to the tiles inside. None: the text has no trip
        count
    """
    trips = f" in [0:{-(-tile_of[loop.rank] // loop.tile)})" if tile_of else ""
    if tile_of:
        tile_of[loop.rank] = loop.tile
    return (
        f"parfor {loop.rank}{trips} tile {loop.tile} over {loop.over}"
        if loop.over
        else f"for {loop.rank}{trips} tile {loop.tile}"
    )


def nest_lines(mapping: Mapping, tile_of: dict[str, int] | None = None) -> list[str]:
    """Returns the lines of a mapping's text.

    tile_of: tile of each rank outside of the nest, for trip counts; is updated to the tiles inside. None: the
        text has no trip counts
    """
    return mapping.non_nest_text.splitlines() if mapping.non_nest_text else list(_lines(mapping, tile_of))


def _lines(mapping: Mapping, tile_of: dict[str, int] | None) -> Iterator[str]:
    yield from (f"layout {one.level} {one.tensor}: {one.text}" for one in mapping.layouts)
    yield from (f"share {one.level} {one.tensor} over {' '.join(one.dims)}" for one in mapping.shares)
    indent = ""
    for level, group in groupby(
        mapping.nodes, key=lambda node: node.level if isinstance(node, Store) else None
    ):
        if level is not None:
            yield (
                f"{indent}store {level} {' '.join(node.tensor for node in group if isinstance(node, Store))}"
            )
            continue
        for node in group:
            assert isinstance(node, Loop)
            yield f"{indent}{loop_text(node, tile_of)}"
            indent += "  "
    yield f"{indent}mac{f' on {mapping.unit}' if mapping.unit else ''}"


def parse(text: str) -> Mapping:
    """Returns the mapping of a text, the inverse of str(mapping); indentation is free. Raises ValueError
    naming the line.
    """
    nodes: list[Loop | Store] = []
    layouts: list[TensorLayout] = []
    shares: list[Rotated] = []
    unit = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith(NON_NEST):
        advice = (
            "--format directives prints a text that dse simulate reads"
            if "directives" in lines[0]
            else "dse map --set solver.tiling=smaug finds this mapping again"
        )
        raise ValueError(f"mapping is {lines[0]}; only loop nests can be read here: {advice}")
    for number, line in enumerate(lines, 1):
        if (match := MAC.match(line)) and number == len(lines):
            unit = match[1] or ""
            break
        if match := STORE.match(line):
            nodes.extend(Store(match[1], tensor) for tensor in match[2].split())
        elif match := LAYOUT.match(line):
            layouts.append(TensorLayout(match[1], match[2], " ".join(match[3].split())))
        elif match := SHARE.match(line):
            shares.append(Rotated(match[1], match[2], tuple(match[3].split())))
        elif match := LOOP.match(line):
            nodes.append(Loop(match[1], int(match[3]), trips=int(match[2] or 0)))
        elif match := SPATIAL.match(line):
            nodes.append(Loop(match[1], int(match[3]), match[4], int(match[2] or 0)))
        else:
            new_form = line_now(line)
            raise ValueError(
                f'mapping, line {number}: "{line}" '
                + (
                    f"has a new form; write {new_form}"
                    if new_form
                    else f"is none of {FORMS}; mac stands last"
                )
            )
    return Mapping(tuple(nodes), layouts=tuple(layouts), shares=sorted_shares(shares), unit=unit)


def sorted_shares(shares: Iterable[Rotated]) -> tuple[Rotated, ...]:
    """Returns shares in canonical order; their order has no meaning."""
    return tuple(sorted(shares, key=lambda one: (one.level, one.tensor, one.dims)))


def to_data(mapping: Mapping) -> list[dict[str, Any]]:
    """Returns a nest as a list for YAML, with entries {layout, level, tensor}, {share, level, over}, {store,
    tensors}, {for, tile} and {parfor, over, tile}; {mac} where a compute is named.
    """
    data: list[dict[str, Any]] = [
        {"layout": one.text, "level": one.level, "tensor": one.tensor} for one in mapping.layouts
    ]
    data += [{"share": one.tensor, "level": one.level, "over": list(one.dims)} for one in mapping.shares]
    for node in mapping.nodes:
        if isinstance(node, Loop):
            data.append(
                {"parfor": node.rank, "over": node.over, "tile": node.tile}
                if node.over
                else {"for": node.rank, "tile": node.tile}
            )
        elif data and data[-1].get("store") == node.level:
            data[-1]["tensors"].append(node.tensor)
        else:
            data.append({"store": node.level, "tensors": [node.tensor]})
    return [*data, {"mac": mapping.unit}] if mapping.unit else data


def from_data(data: Sequence[Any]) -> Mapping:
    """Returns the mapping of a list, the inverse of to_data. Raises ValueError naming the entry."""
    nodes: list[Loop | Store] = []
    layouts: list[TensorLayout] = []
    shares: list[Rotated] = []
    unit = ""
    for number, entry in enumerate(data, 1):
        match entry:
            case {"layout": str(text), "level": str(level), "tensor": str(tensor), **rest} if not rest:
                layouts.append(TensorLayout(level, tensor, " ".join(text.split())))
            case {"share": str(tensor), "level": str(level), "over": [*dims], **rest} if dims and not rest:
                shares.append(Rotated(level, tensor, tuple(str(dim) for dim in dims)))
            case {"store": str(level), "tensors": [*tensors], **rest} if tensors and not rest:
                nodes.extend(Store(level, str(tensor)) for tensor in tensors)
            case {"for": str(rank), "tile": int(tile), **rest} if not rest:
                nodes.append(Loop(rank, tile))
            case {"parfor": str(rank), "over": str(dim), "tile": int(tile), **rest} if not rest:
                nodes.append(Loop(rank, tile, dim))
            case {"mac": str(name), **rest} if not rest and number == len(data):
                unit = name
            case _:
                forms = (
                    "{layout, level, tensor}, {share, level, over}, {store, tensors}, {for, tile}, "
                    "{parfor, over, tile}, {mac} as the last"
                )
                old_key = next(
                    (old_key for old_key in ENTRIES if isinstance(entry, dict) and old_key in entry), ""
                )
                why = (
                    f"{old_key} has a new name; write {ENTRIES[old_key]}"
                    if old_key
                    else f"is none of {forms}"
                )
                raise ValueError(f"mapping, entry {number}: {entry!r} {why}")
    return Mapping(tuple(nodes), layouts=tuple(layouts), shares=sorted_shares(shares), unit=unit)


def read(path: Path, names: Sequence[str], equal_names: Sequence[str] = ()) -> dict[str, Mapping]:
    """Returns mappings by einsum name from a file: one nest as text (for a workload of one einsum), or YAML
    of {einsum: nest or list}.

    names: einsums of the workload
    equal_names: other einsums of the workload that may have mappings, since each is equal to one of `names`.
        Conversions may have mappings, too

    Raises ValueError with one line per fault, each naming the file.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(document.MAX_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ValueError(
            f"{path}: cannot be read as a mapping ({getattr(fault, 'strerror', None) or 'not UTF-8 text'}); "
            "see dse map --format yaml"
        ) from None
    data, yaml_faults = (text, []) if is_text(text) else document.parse(text)
    if (data is None and yaml_faults) or len(text) > document.MAX_BYTES:
        raise ValueError(
            f"{path}: cannot be read as a mapping ({yaml_faults[0] if yaml_faults else 'too long'}); see "
            "dse map --format yaml"
        )
    if data is None:
        raise ValueError(f"{path}: holds no mapping, the file is empty; see dse map --format yaml")
    if not _is_mapping(data, [*names, *equal_names]):
        raise ValueError(
            f"{path}: is no mapping (lines like store LEVEL TENSOR, or YAML of a nest per einsum); "
            "see dse map --format yaml"
        )
    if yaml_faults:
        raise ValueError(f"{path}: cannot be read as a mapping ({yaml_faults[0]}); see dse map --format yaml")
    if isinstance(data, str | list):
        data = {names[0]: data} if len(names) == 1 else {"": data}
    unknown_names = (
        [
            str(name)
            for name in data
            if name not in names and name not in equal_names and not COPY_NAME.match(str(name))
        ]
        if isinstance(data, dict)
        else []
    )
    if not isinstance(data, dict) or unknown_names:
        unknown = ", ".join(unknown_names) or type(data).__name__
        raise ValueError(
            f'{path}: "{unknown}" is no einsum of the workload; give one nest each for '
            f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        )
    found, lines = {}, []
    for name, nest in data.items():
        try:
            found[name] = (
                parse(nest)
                if isinstance(nest, str)
                else from_data(nest if isinstance(nest, list) else [nest])
            )
        except ValueError as fault:
            lines.append(f"{path}: {name}: {fault}")
    if lines:
        raise ValueError("\n".join(lines))
    return found


def is_text(text: str) -> bool:
    """True if the text has a line that only nests have, or begins like a mapping that is no loop nest.
    Messages may quote the text only then.
    """
    lines = [line.strip() for line in text.splitlines()]
    return (
        text.lstrip().startswith(NON_NEST)
        or any(map(MAC.match, lines))
        or any(form.match(line) for line in lines for form in (LOOP, SPATIAL, LAYOUT, SHARE))
    )


def _is_mapping(data: object, names: Sequence[str]) -> bool:
    """True if a document is a nest, a part of one, or a nest under the name of an einsum."""
    if isinstance(data, dict):
        named = any(str(key) in names or COPY_NAME.match(str(key)) for key in data)
        return named or any(_is_mapping(value, ()) for value in data.values() if not isinstance(value, dict))
    if isinstance(data, list):
        return any(
            isinstance(entry, dict) and {"store", "for", "parfor", "layout", "share"} & entry.keys()
            for entry in data
        )
    return isinstance(data, str) and is_text(data)


def role(e: Einsum, tensor: str) -> str:
    """Returns the role of a tensor in an einsum: input (the first), weight (any further input) or output."""
    return "output" if tensor == e.output.tensor else "input" if tensor == e.inputs[0].tensor else "weight"


def gates_zeros(e: Einsum, gates: tuple[str, ...]) -> bool:
    """True if an operand of a role that compute gates (`Compute.gates`) has zeros."""
    return bool(gates) and any(p.density != 1 and role(e, p.tensor) in gates for p in e.inputs)


def ungated(e: Einsum, gates: tuple[str, ...], for_output: bool = False) -> Einsum:
    """Returns the einsum as memories outside of arrays serve it. A PE that gates a zero stays in step with
    those that do not, so operands whose zeros are gated have none there. gates: roles (`Compute.gates`).
    for_output: as they serve the result; products add to a compressed one where it has entries.
    """
    if not gates_zeros(e, gates):
        return e
    inputs = tuple(replace(p, density=1.0) if role(e, p.tensor) in gates else p for p in e.inputs)
    entries = for_output and e.output.format != "dense"
    share = min(e.output.density, prod(p.density for p in inputs)) if entries else 0.0
    return replace(e, inputs=inputs, share=share)


def in_lockstep(e: Einsum, compute: Compute) -> bool:
    """True if PEs step through the groups of an operand in N:M together (`in_groups`): not where zeros of an
    operand are gated, at which PEs wait for each other.
    """
    return compute.lockstep and not gates_zeros(e, compute.gates)


def may_keep(e: Einsum, level: Level) -> list[str]:
    """Returns the tensors that may be stored at a level, inputs first. If the level may not be bypassed, they
    must be stored there.
    """
    return [p.tensor for p in e.tensors() if role(e, p.tensor) in level.may_keep]


def bits_at(level: Level, tensor: str, e: Einsum, arch: Arch) -> int:
    """Returns the bits of an element of a tensor at a level: those that the level gives its role
    (`Level.bits`), else its own, else the machine's word.
    """
    p = e.output if e.output.tensor == tensor else next(p for p in e.inputs if p.tensor == tensor)
    elsewhere = p.bits or arch.word_bits
    return level.elem_bits(role(e, tensor), elsewhere) if level.bits else elsewhere


def stored_at(formats: Sequence[Stored], p: Projection, e: Einsum) -> Projection:
    """Returns a tensor of an einsum as a level stores it: in the format that the level gives its role
    (formats: `Level.formats`), else in its own.
    """
    own = next((one for one in formats if one.role == role(e, p.tensor)), None)
    return stored_as(p, own.form, own.index_bits, own.pointer_bits) if own else p


def packing_levels(e: Einsum, arch: Arch) -> list[str]:
    """Returns the levels that store a tensor of an einsum otherwise than the workload says, by their names in
    machine files.
    """
    return [
        level.name.lower()
        for level in arch.levels
        if any(stored_at(level.formats, p, e) != p for p in e.tensors())
    ]


def format_faults(e: Einsum, levels: Iterable[Level | Memory]) -> Iterator[str]:
    """Yields why a tensor of an einsum cannot be stored in the format that a level gives its role."""
    for level in levels:
        for one in level.formats:
            for p in e.tensors():
                if role(e, p.tensor) != one.role or (held := stored_at(level.formats, p, e)) is p:
                    continue
                key = f"{e.name}: {level.name.lower()}.formats.{one.role} = {one.form}"
                least = dict(zip(("index_bits", "pointer_bits"), min_widths(held), strict=True))
                if short := [n for n, bits in least.items() if 0 < (getattr(one, n) or bits) < bits]:
                    yield (
                        f"{key}: {short[0]} = {getattr(one, short[0])} is too few for {p.tensor}, which "
                        f"needs {least[short[0]]}; widen them, or leave them out"
                    )
                if held.format == "csr" and (fault := padded_rows_fault(held, e.sizes())):
                    yield f"{key}: {p.tensor} cannot be csr; {fault}"
                if STRUCTURED.fullmatch(held.format) and held.format != p.format and p is not e.output:
                    yield (
                        f"{key}: {p.tensor} is {p.format}, and not {one.form} of its neighbours are nonzero "
                        "everywhere; take csr, coo, rle or bitmask, or give the workload that format"
                    )
                if (
                    p is e.output
                    and held.format != "dense"
                    and (fault := packed_result_fault(held, e.inputs))
                ):
                    yield f"{key}: {fault}"


def faults(mapping: Mapping, e: Einsum, arch: Arch) -> list[str]:
    """Returns why a mapping is not legal for this einsum on this machine, one line each. Capacities are
    checked by the evaluator.
    """
    try:
        arch = arch.unit(mapping.unit)
    except ValueError as fault:
        return [f"mapping of {e.name}: {fault}"]
    if len(mapping.nodes) > MAX_NODES:
        return [
            f"mapping of {e.name}: {len(mapping.nodes)} loops and storage nodes, more than the "
            f"{MAX_NODES} that any einsum needs"
        ]
    lines = (
        *_loop_faults(mapping, e, arch),
        *_store_faults(mapping, e, arch),
        *_spatial_faults(mapping, e, arch),
        *_layout_faults(mapping, e),
        *_width_faults(mapping, e, arch),
    )
    return [f"mapping of {e.name}: {line}" for line in lines]


def _loop_faults(mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    tile_of = e.sizes()
    faulty_ranks: set[str] = set()
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    for node in mapping.nodes:
        if not isinstance(node, Loop):
            continue
        if node.rank not in tile_of:
            yield f"loop over unknown rank {node.rank}; the einsum has {', '.join(tile_of)}"
        elif node.rank in faulty_ranks:
            continue
        elif not 1 <= node.tile <= tile_of[node.rank]:
            faulty_ranks.add(node.rank)
            yield (
                f"loop {node.rank} tile {node.tile}: the tile outside is {tile_of[node.rank]}; take 1 to "
                f"{tile_of[node.rank]}"
            )
        else:
            trips = -(-tile_of[node.rank] // node.tile)
            if node.trips not in (0, trips):
                yield (
                    f"loop {node.rank} in [0:{node.trips}) tile {node.tile}: {tile_of[node.rank]} in "
                    "tiles of "
                    f"{node.tile} take {trips} trips; correct the trip count or the tile"
                )
            tile_of[node.rank] = node.tile
        if node.over and node.over not in dims:
            yield (
                f"parfor {node.rank} over {node.over}: the machine's fan-out dimensions are "
                f"{', '.join(dims) or 'none'}"
            )
    for rank, tile in tile_of.items():
        if tile != 1 and rank not in faulty_ranks:
            yield f"rank {rank} ends with tile {tile}, not 1; add a loop: for {rank} tile 1"


def _store_faults(mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    order = arch.level_index()
    levels_of: dict[str, list[int]] = {p.tensor: [] for p in e.tensors()}
    for node in mapping.nodes:
        if not isinstance(node, Store):
            continue
        if node.level not in order:
            yield f"store {node.level}: no such level; the machine has {', '.join(order)}"
        elif node.tensor not in levels_of:
            yield f"store {node.level} {node.tensor}: no such tensor; the einsum has {', '.join(levels_of)}"
        elif (tensor_role := role(e, node.tensor)) not in arch.levels[order[node.level]].may_keep:
            yield (
                f"store {node.level} {node.tensor}: {node.level} holds no {tensor_role}, only "
                f"{', '.join(arch.levels[order[node.level]].may_keep)}"
            )
        elif levels_of[node.tensor] and order[node.level] <= levels_of[node.tensor][-1]:
            yield (
                f"store {node.level} {node.tensor}: stands below a node of "
                f"{arch.levels[levels_of[node.tensor][-1]].name}; keep the order of the hierarchy"
            )
        else:
            levels_of[node.tensor].append(order[node.level])
    for v, level in enumerate(arch.levels):
        missing = [tensor for tensor in may_keep(e, level) if v not in levels_of[tensor]]
        if missing and not level.bypass:
            yield f"tensor {missing[0]} is not stored at {level.name}, which no tensor may bypass"
    for tensor, levels in levels_of.items():
        if not levels:
            yield f"tensor {tensor} has no storage node; store it at one level at least"


def compressed_width(e: Einsum, arch: Arch) -> str:
    """Returns why an einsum is not counted on a machine whose levels give elements widths of their own, in
    one line: a compressed tensor; "": it is.
    """
    return next(
        (
            f"{e.name}: {level.name.lower()}.bits.{of} = {bits}: {p.tensor} is compressed ({p.format}), and "
            f"nonzeros with their indices have one width everywhere; leave {of} out of bits, or store "
            f"{p.tensor} dense"
            for level in arch.levels
            for of, bits in level.bits
            for p in e.tensors()
            if role(e, p.tensor) == of
            and any(stored_at(one.formats, p, e).format != "dense" for one in arch.levels)
        ),
        "",
    )


def _width_faults(mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    if line := compressed_width(e, arch):
        yield line
    yield from format_faults(e, arch.levels)
    for one in mapping.shares if packing_levels(e, arch) else ():
        yield (
            f"share {one.level} {one.tensor}: parts that PEs pass round are counted in one format; leave it "
            "out, or `formats` of the machine's memories"
        )
    if arch.narrows_or_widens():
        for one in mapping.shares:
            yield (
                f"share {one.level} {one.tensor}: parts that PEs pass round are counted in one width only; "
                "leave it out, or `bits` of the machine's memories"
            )
    for one in mapping.shares if arch.with_sharing() else ():
        yield (
            f"share {one.level} {one.tensor}: parts that PEs pass round are counted where each PE has its "
            "memories; leave it out, or `along` of the machine's memories"
        )
    for one in mapping.shares if arch.with_ports() else ():
        yield (
            f"share {one.level} {one.tensor}: parts that PEs pass round are timed at ports that serve all "
            "tensors; leave it out, or the ports of the machine's memories"
        )


def _layout_faults(mapping: Mapping, e: Einsum) -> Iterator[str]:
    stored = [(node.level, node.tensor) for node in mapping.nodes if isinstance(node, Store)]
    tensors = [p.tensor for p in e.tensors()]
    for i, one in enumerate(mapping.layouts):
        place = (one.level, one.tensor)
        if one.tensor not in tensors:
            yield f"layout {one.level} {one.tensor}: no such tensor; the einsum has {', '.join(tensors)}"
        elif place not in stored:
            stored_at = [level for level, tensor in stored if tensor == one.tensor]
            yield (
                f"layout {one.level} {one.tensor}: {one.tensor} is not stored at {one.level}; give its "
                f"layout at {' or '.join(stored_at)}"
            )
        elif place in [(other.level, other.tensor) for other in mapping.layouts[:i]]:
            yield f"layout {one.level} {one.tensor} is given twice; leave one out"


def alike(e: Einsum, arch: Arch, dim: str) -> list[Projection]:
    """Returns the tensors of which PEs along a dimension must want the same elements, for they share one
    instance of a memory that may keep them (`Fanout.shared`).
    """
    roles = arch.sharing_roles(dim)
    return [p for p in e.tensors() if role(e, p.tensor) in roles] if roles else []


def unrollable(e: Einsum, arch: Arch, dim: str) -> list[str]:
    """Returns the ranks that may be unrolled over a dimension of an array. A rank in a window of the output
    may not: PEs would share output elements through a window.
    """
    apart = e.output.partial_ranks().union(*(p.ranks() for p in alike(e, arch, dim)))
    return [rank for rank, _ in e.extents if rank not in apart]


def _spatial_faults(mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    outside = {name: f.outside for f in arch.fanouts for name, _ in f.dims}
    order, tile = arch.level_index(), e.sizes()
    divisor = e.sizes()  # of each rank, of its extent and all tiles so far
    for i, node in enumerate(mapping.nodes):
        if not isinstance(node, Loop):
            continue
        has_trips = node.tile < tile.get(node.rank, 0)
        tile[node.rank] = node.tile
        divisor[node.rank] = gcd(divisor.get(node.rank, 0), node.tile)
        if node.over not in outside:
            continue
        least = whole_slots(e, node.rank) if has_trips and in_lockstep(e, arch.compute) else 1
        own = in_groups(e) if divisor[node.rank] % least else None
        if own:
            yield (
                f"parfor {node.rank} tile {node.tile} over {node.over}: PEs in lockstep (of {own.tensor} in "
                f"{own.format}) get {least} values of {node.rank} or multiples; give this loop and those "
                f"over {node.rank} around it tiles that are multiples of {least}, or take lockstep out of "
                "the machine"
            )
        boundary = outside[node.over]
        above = [n for n in mapping.nodes[:i] if isinstance(n, Store) and order.get(n.level, -1) >= boundary]
        below = [
            n for n in mapping.nodes[i:] if isinstance(n, Store) and order.get(n.level, boundary) < boundary
        ]
        for wrong, where in ((above, "below"), (below, "above")):
            if wrong:
                yield (
                    f"parfor {node.rank} over {node.over} stands {where} store {wrong[0].level} "
                    f"{wrong[0].tensor}, on the wrong side of the fan-out"
                )
        shared = alike(e, arch, node.over) if has_trips else []
        for p in [p for p in shared if node.rank in p.ranks()][:1]:
            yield (
                f"parfor {node.rank} over {node.over}: PEs along {node.over} share one instance of a memory "
                f"of {p.tensor} (along), and would want different elements of it; unroll a rank that "
                f"{p.tensor} has not"
            )
        if node.rank in e.output.partial_ranks():
            yield (
                f"parfor {node.rank} over {node.over}: {node.rank} is partially relevant to the output "
                f"{e.output.tensor}; PEs would share elements"
            )
