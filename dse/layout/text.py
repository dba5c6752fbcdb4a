"""Layouts as text, and their canonical form.

    layout := [defs '|'] token+        outer to inner, blanks between
    token  := DIM                      a whole dimension: N
            | DIM '/' s                its outer part, i / s
            | dim m ['/' s]            an inner part, (i mod m) / s: h8/2, h2
            | dim S '~' B              the inner part of an unfolded dimension: tiles of B elements that begin
                                       S apart, so they overlap; its outer part, which tile, is DIM/S
    suffix := '+' p                    pitch padding: p empty positions behind the part
            | '&' name [':' g]         guest: g (default 1) positions behind the part, for elements of the
                                       tensor `name` (primitive store_at)
    group  := '(' token+ ')'           shows neighbouring parts as one axis; changes no address
    defs   := name '=' DIM '*' DIM ... (';' ...)   neighbouring dimensions fused first: e=H*W*O | N E/784 e784

Digit: a part of a dimension in canonical form, (index mod modulus) / step, with its pitch.
Parts of a dimension chain: H/8 h8/2 h2. The canonical form has
* no parts of size 1, no neighbours that form one part, and no groups
* no modulus in the outermost part of a dimension; positions that it never reaches are pitch padding (`H/4 h4`
  of H = 7 is `H+1`)
* split parts instead of tiles that do not overlap
* separate dimensions instead of a fused one that is not cut
Equal canonical layouts of a shape have equal address maps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from dse.layout.address import Digit, Layout, StoredDim
from dse.layout.primitive import (
    Fuse,
    LayoutError,
    Pad,
    Primitive,
    Reorder,
    Shape,
    Split,
    StoreAt,
    Unfold,
    tiles_of,
)

NAME = r"[A-Za-z_]+(?:\d+[A-Za-z_]+)*"
INT = r"\d{1,9}"
TOKEN = re.compile(
    rf"(\(*)({NAME})(?:({INT})(?:~({INT}))?)?(?:/({INT}))?(?:\+({INT}))?((?:&{NAME}(?::{INT})?)*)(\)*)"
)
FORMS = "N, O/16, o16, h8/2, h4~6, each with +p or &name"
MAX_CHARS = 400  # characters of a layout text, more than any layout needs; protects against malformed files
MAX_COPIES = 64  # copies of an element in overlapping tiles, at most
MAX_ELEMS = 1 << 50  # elements that a layout may take with padding, at most


@dataclass(frozen=True, slots=True)
class Token:
    """One part of a layout as written."""

    text: str
    dim: int  # index of the stored dimension
    modulus: int  # m; 0: an outer part; for an unfolded inner part its stride S
    step: int  # s
    tile: int  # B, elements of a tile of an unfolded inner part, otherwise 0
    pad: int  # empty positions behind it
    guests: tuple[tuple[str, int], ...]  # (tensor, positions behind the part that hold its elements)
    opens: int  # parentheses before it
    closes: int  # parentheses after it


def parse(text: str, names: Sequence[str], shape: Shape) -> Layout:
    """Returns the layout of a text. Raises LayoutError in one line.

    names, shape: of the tensor's dimensions
    """
    stored, tokens = _read(text, names, shape)
    digits = [digit for token in tokens for digit in _digits(token, stored, tokens)]
    # tiles that do not overlap become a split; a single tile is the whole dimension
    for k, s in enumerate(stored):
        if s.tile and (s.tile == s.stride or s.tiles() == 1):
            stored[k] = replace(s, tile=0, stride=0)
    layout = Layout(tuple(names), tuple(shape), *_unfuse_uncut(stored, _merge(digits, stored)))
    if layout.stored_elems() > MAX_ELEMS:
        raise LayoutError(f'layout "{text}": takes {layout.stored_elems():.2g} elements; pad less')
    return layout


def primitives(text: str, names: Sequence[str], shape: Shape) -> list[Primitive]:
    """Returns the primitives that a text stands for, in this order: fuse; per dimension pad and split, or
    unfold; one reorder; padding and guests; fused groups.
    """
    stored, tokens = _read(text, names, shape)
    found: list[Primitive] = [
        Fuse(tuple(range(k, k + len(s.members)))) for k, s in enumerate(stored) if len(s.members) > 1
    ]
    # axes before the reorder, each as its token; one without text stands nowhere in the layout's text
    axes: list[Token] = []
    for k, s in enumerate(stored):
        parts = sorted((t for t in tokens if t.dim == k), key=_outermost_first)
        at = len(axes)
        if any(t.tile for t in parts):
            found.append(Unfold(at, parts[-1].tile, parts[-1].modulus))
        elif len(parts) > 1 or (parts and parts[0].modulus):
            outer = [] if parts[0].modulus == 0 else [_tile_count(s, parts[0].modulus)]
            factors = [*outer, *(_size(t, s, tokens) for t in parts)]
            if padding := prod(factors) - s.extent():
                found.append(Pad(at, 0, padding))
            found.append(Split(at, tuple(factors)))
            axes += [replace(parts[0], text="", opens=0, closes=0, pad=0, guests=())] * len(outer)
        axes += parts or [Token("", k, 0, 1, 0, 0, (), 0, 0)]
    order = [next(i for i, axis in enumerate(axes) if axis is token) for token in tokens]
    implied = [i for i, axis in enumerate(axes) if not axis.text]  # axes of extent 1 that the text leaves out
    if [*implied, *order] != list(range(len(axes))):
        found.append(Reorder((*implied, *order)))
    for at, token in enumerate(tokens, len(implied)):
        found += [Pad(at, 0, token.pad)] if token.pad else []
        found += [StoreAt(at, extent, name) for name, extent in token.guests]
    return [*found, *_fused_groups(tokens, len(implied))]


def _fused_groups(tokens: Sequence[Token], first_axis: int) -> Iterator[Fuse]:
    """Yields a fuse for every outermost pair of parentheses, last first, so that axes before it keep their
    positions.
    """
    found, depth, first = list[Fuse](), 0, 0
    for at, token in enumerate(tokens, first_axis):
        first = at if token.opens and not depth else first
        depth += token.opens - token.closes
        if token.closes and not depth and at > first:
            found.append(Fuse(tuple(range(first, at + 1))))
    yield from reversed(found)


def show(layout: Layout) -> str:
    """Returns the canonical text, which `parse` reads as the same layout."""
    letters = iter(
        c for c in "zyxwvutsrqponmlkjihgfedcba" if c.upper() not in {name.upper() for name in layout.names}
    )
    names = [
        layout.names[s.members[0]] if len(s.members) == 1 else next(letters).upper() for s in layout.stored
    ]
    fused = [(name, s.members) for name, s in zip(names, layout.stored, strict=True) if len(s.members) > 1]
    defs = ";".join(f"{name.lower()}={'*'.join(layout.names[m] for m in members)}" for name, members in fused)
    body = (
        " ".join(_show(digit, layout.stored[digit.dim], names[digit.dim]) for digit in layout.digits)
        or names[0]
    )
    return f"{defs} | {body}" if defs else body


def _show(d: Digit, s: StoredDim, name: str) -> str:
    step = f"/{d.step}" if d.step > 1 else ""
    if s.tile:
        text = f"{name.lower()}{s.stride}~{s.tile}" if d.modulus else f"{name}/{s.stride}"
    else:
        text = f"{name.lower()}{d.modulus}{step}" if d.modulus else f"{name}{step}"
    pad = d.pitch - d.size - sum(extent for _, extent in d.guests)
    return (
        text
        + (f"+{pad}" if pad else "")
        + "".join(f"&{guest}:{extent}" if extent > 1 else f"&{guest}" for guest, extent in d.guests)
    )


def _read(text: str, names: Sequence[str], shape: Shape) -> tuple[list[StoredDim], list[Token]]:
    """Returns the stored dimensions and the checked tokens of a text."""
    if len(text) > MAX_CHARS:
        raise LayoutError(
            f'layout "{text[:40]}...": {len(text)} characters, more than the {MAX_CHARS} that any needs'
        )
    head, bar, body = text.partition("|") if "|" in text else ("", "", text)
    stored_names, stored = (
        _fused_dims(text, head, names, shape)
        if bar
        else (list(names), [StoredDim((k,), (n,)) for k, n in enumerate(shape)])
    )
    tokens = [
        _token(text, word, stored_names)
        for word in re.sub(r"\(\s+", "(", re.sub(r"\s+\)", ")", body)).split()
    ]
    depth = 0
    for token in tokens:
        depth += token.opens - token.closes
        if depth < 0:
            break
    if depth:
        raise LayoutError(f'layout "{text}": parentheses do not match')
    for k, s in enumerate(stored):
        if len({t.tile for t in tokens if t.dim == k and t.tile}):
            stored[k] = s = _with_tiles(text, [t for t in tokens if t.dim == k], s, stored_names[k])
        else:
            _check_chain(text, [t for t in tokens if t.dim == k], s, stored_names[k])
    return stored, tokens


def _fused_dims(
    text: str, head: str, names: Sequence[str], shape: Shape
) -> tuple[list[str], list[StoredDim]]:
    """Returns the names of stored dimensions and the dimensions, from the definitions before `|`."""
    fused_by_first: dict[int, tuple[str, list[int]]] = {}
    for line in head.split(";"):
        name, equals, product = (piece.strip() for piece in line.partition("="))
        fused = [piece.strip() for piece in product.split("*")]
        if (
            not equals
            or not re.fullmatch(NAME, name)
            or name.upper() in names
            or any(d not in names for d in fused)
        ):
            raise LayoutError(
                f'layout "{text}": "{line.strip()}" is no new dimension: it takes a new name, = and '
                f"dimensions of {' '.join(names)}; write e.g. e={'*'.join(names[-2:])} |"
            )
        members = [names.index(d) for d in fused]
        if members != list(range(members[0], members[0] + len(members))) or any(
            m in taken for _, taken in fused_by_first.values() for m in members
        ):
            raise LayoutError(
                f'layout "{text}": {"*".join(fused)}: dims not adjacent, or fused twice; the tensor has '
                f"{' '.join(names)}"
            )
        fused_by_first[members[0]] = (name.upper(), members)
    fused_members = {m for _, members in fused_by_first.values() for m in members}
    stored_names, stored = list[str](), list[StoredDim]()
    for k, n in enumerate(shape):
        if k in fused_by_first:
            stored_names.append(fused_by_first[k][0])
            stored.append(
                StoredDim(tuple(fused_by_first[k][1]), tuple(shape[m] for m in fused_by_first[k][1]))
            )
        elif k not in fused_members:
            stored_names.append(names[k])
            stored.append(StoredDim((k,), (n,)))
    return stored_names, stored


def _token(text: str, word: str, stored_names: Sequence[str]) -> Token:
    """Returns the token of one word. stored_names: names of the stored dimensions."""
    match = TOKEN.fullmatch(word)
    if not match:
        raise LayoutError(f'layout "{text}": "{word}" is no part of a dimension; write {FORMS}')
    opens, name, modulus, tile, step, pad, guests, closes = match.groups()
    dim_of = (
        {n: k for k, n in enumerate(stored_names)}
        if modulus is None
        else {n.lower(): k for k, n in enumerate(stored_names)}
    )
    if name not in dim_of:
        raise LayoutError(
            f'layout "{text}": "{word}" names no dimension; write {" ".join(stored_names)} for '
            f"whole and outer parts ({stored_names[0]}, {stored_names[0]}/4), lower case with a size for "
            f"inner parts ({stored_names[0].lower()}4)"
        )
    if "0" in (modulus, tile, step) or (tile and step):
        raise LayoutError(
            f'layout "{text}": "{word}": sizes must be at least 1, and an unfolded part (~) takes no /'
        )
    guest_slices = tuple((g.partition(":")[0], int(g.partition(":")[2] or 1)) for g in guests.split("&")[1:])
    if empty := next((guest for guest, extent in guest_slices if not extent), ""):
        raise LayoutError(
            f'layout "{text}": "{word}" gives {empty} no slice; write &{empty}, or &{empty}:2 for two'
        )
    return Token(
        word,
        dim_of[name],
        int(modulus or 0),
        int(step or 1),
        int(tile or 0),
        int(pad or 0),
        guest_slices,
        len(opens),
        len(closes),
    )


def _with_tiles(text: str, parts: Sequence[Token], s: StoredDim, name: str) -> StoredDim:
    """Returns the stored dimension with the tiles of its unfolded part. Raises LayoutError if they do not
    fit.
    """
    inner = next(t for t in parts if t.tile)
    size, stride = inner.tile, inner.modulus
    why = (
        "stride larger than the tile leaves gaps"
        if stride > size
        else f"tile larger than the extent {s.extent()}"
        if size > s.extent()
        else f"stores up to {-(-size // stride)} copies of an element, more than {MAX_COPIES}; let tiles "
        "overlap less"
        if size > MAX_COPIES * stride
        else ""
        if len(parts) == 2 and any(t.modulus == 0 and t.step == stride for t in parts)
        else f"needs exactly one other part of its dimension, {name}/{stride}"
    )
    if why:
        raise LayoutError(f'layout "{text}": "{inner.text}": {why}')
    return replace(s, tile=size, stride=stride)


def _check_chain(text: str, parts: Sequence[Token], s: StoredDim, name: str) -> None:
    """Raises LayoutError unless the parts of one dimension form a chain without gaps, each part once. Outer
    parts, and dimensions of one element, may be omitted.
    """
    chain = sorted(parts, key=_outermost_first)
    if not chain:
        if s.extent() > 1:
            raise LayoutError(
                f'layout "{text}": dimension {name} of {s.extent()} elements is missing; add {name}'
            )
        return
    for t in chain:
        if t.modulus and t.modulus % t.step:
            raise LayoutError(f'layout "{text}": "{t.text}": {t.step} does not divide {t.modulus}')
    for outer, inner in pairwise(chain):
        if outer.step != inner.modulus:
            raise LayoutError(
                f'layout "{text}": "{outer.text}" and "{inner.text}" do not chain; inside of '
                f'"{outer.text}" comes {name.lower()}{outer.step}'
            )
    if chain[-1].step != 1:
        raise LayoutError(
            f'layout "{text}": "{chain[-1].text}" leaves {chain[-1].step} elements without a place; '
            f"add {name.lower()}{chain[-1].step}"
        )
    if chain[0].modulus and chain[0].modulus < s.extent():
        raise LayoutError(
            f'layout "{text}": "{chain[0].text}" has no outer part; add {name}/{chain[0].modulus}'
        )


def _gap(t: Token) -> int:
    """Returns the number of positions of padding and guests behind a part."""
    return t.pad + sum(extent for _, extent in t.guests)


def _outermost_first(t: Token) -> tuple[bool, int, int]:
    """Sort key for the parts of one dimension."""
    return t.modulus != 0, -t.modulus, -t.step


def _tile_count(s: StoredDim, size: int) -> int:
    """Returns the number of tiles that cover the dimension; the last one may be partial."""
    return -(-s.extent() // size)


def _size(t: Token, s: StoredDim, tokens: Sequence[Token]) -> int:
    """Returns the extent of a part: how many values its index takes."""
    if any(other.tile for other in tokens if other.dim == t.dim):
        tile = next(other.tile for other in tokens if other.dim == t.dim and other.tile)
        return t.tile or tiles_of(s.extent(), tile, t.step)
    return t.modulus // t.step if t.modulus else _tile_count(s, t.step)


def _digits(t: Token, stored: Sequence[StoredDim], tokens: Sequence[Token]) -> Iterator[Digit]:
    """Yields the digit of a token, or nothing if it has one position. The outermost part of a dimension gets
    no modulus; positions that it never reaches become padding.
    """
    s = stored[t.dim]
    size = _size(t, s, tokens)
    pitch = size + _gap(t)
    modulus, step = (t.modulus, t.step) if not s.tile else (s.tile, 1) if t.tile else (0, s.tile)
    if modulus and t is min(
        (o for o in tokens if o.dim == t.dim and _size(o, s, tokens) + _gap(o) > 1),
        key=_outermost_first,
        default=None,
    ):
        modulus, size = 0, -(-s.extent() // step)
    if pitch > 1:
        yield Digit(t.dim, modulus, step, size, pitch, t.guests)


def _unfuse_uncut(
    stored: Sequence[StoredDim], digits: Sequence[Digit]
) -> tuple[tuple[StoredDim, ...], tuple[Digit, ...]]:
    """Returns the dimensions and digits with every fused dimension that is stored as one whole part replaced
    by its members, as if they had not been fused.
    """
    digit_counts = Counter(d.dim for d in digits)
    uncut = {
        d.dim
        for d in digits
        if len(stored[d.dim].members) > 1
        and digit_counts[d.dim] == 1
        and d.size == d.pitch == stored[d.dim].extent()
    }
    new_index, found = dict[int, int](), list[StoredDim]()
    for k, s in enumerate(stored):
        new_index[k] = len(found)
        found += (
            [StoredDim((m,), (n,)) for m, n in zip(s.members, s.extents, strict=True)] if k in uncut else [s]
        )
    split = [
        replace(d, dim=new_index[d.dim]) if d.dim not in uncut else Digit(new_index[d.dim] + i, 0, 1, n, n)
        for d in digits
        for i, n in (enumerate(stored[d.dim].extents) if d.dim in uncut else [(0, 0)])
        if d.dim not in uncut or n > 1
    ]
    return tuple(found), tuple(split)


def _merge(digits: Sequence[Digit], stored: Sequence[StoredDim]) -> list[Digit]:
    """Returns the digits, with neighbours merged that form one part of a dimension without a gap."""
    found: list[Digit] = []
    # a part of one value is here because it is padded, or has guests (`_digits`); where its dimension has
    # one, no parts are merged, which keeps the place of that padding
    dims_with_unit_part = {d.dim for d in digits if d.size == 1}
    for d in digits:
        outer = found[-1] if found else None
        joins = (
            outer
            and outer.dim == d.dim
            and d.modulus
            and outer.step == d.modulus
            and d.size == d.pitch
            and not outer.guests
        )
        if not (outer and joins) or stored[d.dim].tile or d.dim in dims_with_unit_part:
            found.append(d)
            continue
        extent = stored[d.dim].extent()
        size = outer.size * d.size if outer.modulus else -(-extent // d.step)
        found[-1] = Digit(d.dim, outer.modulus, d.step, size, outer.pitch * d.pitch)
    return found
