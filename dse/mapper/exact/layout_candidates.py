"""Candidate layouts of a tensor under a nest. In these, elements that are asked for at once lie side by side.
Layouts that libraries use are candidates too. Left: loops around the tensor; right: layouts in the notation
of dse/layout/text.py, outermost part first.

    for p tile 8                  P/8 .. p8/4 .. : temporal loops outermost, in their order, then PEs, then
                                  the tile
    parfor p tile 4 over X        p8/4 C p4 (also padded, so that each request begins at a line)
    windows of 6 rows, 4 apart    H/4 .. h4~6, or H/4 .. h4, or H
    every second row              h2 H/2: the other rows lie elsewhere
    p tile 125, tile 8 over PEs   P/8 p8: 8 does not divide 125, so the temporal loop has no part. Also
                                  reversed, p8 P/8: elements that PEs read at once, 8 apart, lie side by side

Every text stands for a layout of the whole tensor. Which layout is best is counted, not guessed
(dse/sim/levels/transfer.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import gcd, prod

from dse.layout.address import Layout
from dse.layout.primitive import LayoutError
from dse.layout.text import parse
from dse.mapping.nest import Loop, Mapping
from dse.sim.counts.terms import Link
from dse.sim.levels import transfer
from hw.arch import Arch
from workloads.einsum import Dim, Einsum

MAX_EXPANSION = 1.5  # elements stored per element of the tensor, at most
MAX_WINDOW_CUTS = 8  # ways to cut windows that are tried, at most


def layouts(mapping: Mapping, link: Link, e: Einsum, arch: Arch) -> list[Layout]:
    """The candidate layouts of what a link moves, at the link's parent, the most promising first. Below the
    outermost level they take no more capacity than the tile.
    """
    names = transfer.dim_names(link.tensor)
    shape = transfer.shape_at(mapping, link, e, arch)
    is_outermost = link.parent.level == arch.levels[0].name
    level = next(level for level in arch.levels if level.name == link.parent.level)
    line = max(level.access.line_bits // (link.tensor.bits or arch.word_bits), 1) if level.access else 1
    texts = (
        *_nested(mapping, link, e, names, shape, is_outermost, line),
        *library_layouts(names, shape, line),
    )
    return parse_layouts(texts, names, shape, MAX_EXPANSION if is_outermost else 1.0)


def parse_layouts(
    texts: Sequence[str], names: Sequence[str], shape: Sequence[int], max_expansion: float
) -> list[Layout]:
    """Texts as layouts, each layout once. Left out are layouts that store more than `max_expansion` elements
    per element, and texts that are no layout: a part does not fit what the parts before it leave.
    """
    found: dict[Layout, None] = {}
    for text in dict.fromkeys(texts):
        try:
            layout = parse(text, names, tuple(shape))
        except LayoutError:
            continue
        if layout.stored_elems() <= max_expansion * prod(shape):
            found[layout] = None
    return list(found)


def library_layouts(names: Sequence[str], shape: Sequence[int], line: int) -> Iterator[str]:
    """Texts of layouts that libraries use: row-major, each dimension innermost, a dimension in blocks of a
    line.
    """
    yield " ".join(names)
    for k, name in enumerate(names):
        if shape[k] > 1:
            yield " ".join([*(other for other in names if other != name), name])
        if 1 < line < shape[k]:
            yield " ".join(
                [*(f"{other}/{line}" if other == name else other for other in names), f"{name.lower()}{line}"]
            )


@dataclass(slots=True)
class _Parts:
    """Parts of a layout's text, outermost first. Numbers are the sizes of parts."""

    # index modulo the stride, outermost: indices that the stride skips lie elsewhere
    strided: list[str] = field(default_factory=list)
    temporal: list[str] = field(default_factory=list)  # of temporal loops
    spatial: list[tuple[str, int]] = field(default_factory=list)  # of spatial loops
    tile: list[tuple[str, int]] = field(default_factory=list)  # of the tile


def _nested(
    mapping: Mapping,
    link: Link,
    e: Einsum,
    names: Sequence[str],
    shape: Sequence[int],
    is_outermost: bool,
    line: int,
) -> Iterator[str]:
    """Yields texts of layouts in the order of the loops, for each way to cut windows.

    is_outermost: whether the parent is the outermost level.
    line: elements of a line.
    """
    loops = [(i, node) for i, node in enumerate(mapping.nodes[: link.child_at]) if isinstance(node, Loop)]
    start = e.sizes() | {node.rank: node.tile for i, node in loops if not is_outermost and i < link.parent_at}
    loops_inside = [node for i, node in loops if is_outermost or i >= link.parent_at]
    windows = [k for k, d in enumerate(link.tensor.dims) if len(d.terms) > 1]
    cuts = [
        _window_cuts(link.tensor.dims[k], shape[k], start, loops_inside, not link.is_output) for k in windows
    ]
    for cut_choice in islice(product(*cuts), MAX_WINDOW_CUTS):
        parts = _Parts()
        for k, (d, name) in enumerate(zip(link.tensor.dims, names, strict=True)):
            if k not in windows:
                _add_strided(parts, d, name, shape[k], is_outermost)
        _add_loops(
            parts,
            link.tensor.dims,
            names,
            shape,
            start,
            loops_inside,
            dict(zip(windows, cut_choice, strict=True)),
            is_outermost,
        )
        inside = [*parts.spatial, *parts.tile]
        inner_elems = prod(n for _, n in inside[1:])
        # the outermost part is padded so that what is asked for at once is whole lines
        pad_multiple = line // gcd(line, inner_elems)
        for pad in dict.fromkeys(
            (0, -inside[0][1] % pad_multiple if inside and prod(n for _, n in inside) > 1 else 0)
        ):
            texts = [text + (f"+{pad}" if pad and not i else "") for i, (text, _) in enumerate(inside)]
            yield " ".join([*parts.strided, *parts.temporal, *texts])
        if len(inside) > 1:
            yield " ".join([*parts.strided, *parts.temporal, *(text for text, _ in inside[::-1])])


def _stride(d: Dim, is_outermost: bool) -> int:
    """The distance between successive accessed indices of a dimension of one rank; else 1."""
    return d.terms[0][1] if is_outermost and len(d.terms) == 1 and d.offset == 0 else 1


def _add_strided(parts: _Parts, d: Dim, name: str, n: int, is_outermost: bool) -> None:
    """Adds an outermost part for a strided dimension, so that indices that the stride skips lie elsewhere."""
    if 1 < (c := _stride(d, is_outermost)) < n:
        parts.strided.append(f"{name.lower()}{c}")


def _add_loops(
    parts: _Parts,
    dims: Sequence[Dim],
    names: Sequence[str],
    shape: Sequence[int],
    start: dict[str, int],
    loops: Sequence[Loop],
    windows: dict[int, tuple[int, int]],
    is_outermost: bool,
) -> None:
    """Adds one part of a dimension for each loop over its rank, then the tile. A window is cut once,
    at the first loop over one of its ranks.

    start: size of each rank at the parent.
    windows: dimension -> (step from tile to tile, size of a tile); step 0: not cut.
    """
    dim_of = {rank: k for k, d in enumerate(dims) for rank, _ in d.terms}
    remaining = {k: shape[k] for k in range(len(dims))}
    tile = dict(start)
    for node in loops:
        k = dim_of.get(node.rank)
        if k is None:
            continue
        if k in windows:
            step, _ = windows[k]
            if step and remaining[k]:
                parts.temporal.append(f"{names[k]}/{step}")
                remaining[k] = 0
        else:
            c = _stride(dims[k], is_outermost) if len(dims[k].terms) == 1 and dims[k].terms[0][1] > 0 else 1
            before, after = remaining[k], node.tile * c
            if after < before and (before % after == 0 or before == shape[k]):
                text = f"{names[k]}/{after}" if before == shape[k] else f"{names[k].lower()}{before}/{after}"
                (
                    parts.spatial.append((text, -(-before // after)))
                    if node.over
                    else parts.temporal.append(text)
                )
                remaining[k] = after
            elif (
                after < before
                and node.over
                and not any(text.lower().startswith(names[k].lower()) for text, _ in parts.spatial)
            ):
                parts.temporal = [
                    text for text in parts.temporal if not text.lower().startswith(names[k].lower())
                ]
                parts.spatial.append((f"{names[k]}/{after}", -(-before // after)))
                remaining[k] = after
        tile[node.rank] = node.tile
    for k, name in enumerate(names):
        if k in windows:
            step, size = windows[k]
            parts.tile.append(
                (
                    name
                    if not step
                    else f"{name.lower()}{step}"
                    if step == size
                    else f"{name.lower()}{step}~{size}",
                    size,
                )
            )
            continue
        c = _stride(dims[k], is_outermost) if dims[k].terms else 1
        uncut, stride_cut = remaining[k] == shape[k], f"/{c}" if 1 < c < shape[k] else ""
        if uncut or remaining[k] > (c if stride_cut else 1):
            parts.tile.append(
                (
                    name + stride_cut if uncut else f"{name.lower()}{remaining[k]}{stride_cut}",
                    max(remaining[k] // c, 1),
                )
            )


def _window_cuts(
    d: Dim, n: int, start: dict[str, int], loops: Sequence[Loop], may_overlap: bool
) -> list[tuple[int, int]]:
    """The ways to cut a window's dimension of n elements, as (step, size) of tiles; (0, n): it is not cut.
    may_overlap: whether tiles may overlap, so that elements are stored twice.
    """
    pes, tile = dict.fromkeys(start, 1), dict(start)
    for node in loops:
        if node.over:
            pes[node.rank] *= -(-tile[node.rank] // node.tile)
        tile[node.rank] = node.tile
    advance = {rank: abs(c) * min(tile[rank] * pes[rank], start[rank]) for rank, c in d.terms}
    size = 1 + sum(abs(c) * (min(tile[rank] * pes[rank], start[rank]) - 1) for rank, c in d.terms)
    steps = [step for step in dict.fromkeys(advance.values()) if 1 < step < n]
    return [
        (0, n),
        *((step, size) for step in steps if may_overlap and step < size < n and size <= 2 * step),
        *((step, step) for step in steps),
    ]
