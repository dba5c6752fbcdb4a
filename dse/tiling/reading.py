"""An einsum read as one of the operators that SMAUG tiles: a convolution, a product of matrices, pooling, normalisation, element-wise.

Which role a rank plays follows from the tensors that it stands in, not from its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.nest import Infeasible
from dse.tiling.smaug import Operator, unsupported
from workloads.einsum import Dim, Einsum, Projection


@dataclass(frozen=True, slots=True)
class Reading:
    """An einsum as an operator. ranks: dimension (N H W C of the input, M outputs, R S window) -> rank; groups: (rank, size), run one after the other."""

    operator: Operator
    ranks: dict[str, str]
    groups: tuple[tuple[str, int], ...] = ()


def read(e: Einsum) -> Reading | Infeasible:
    """The operator of an einsum, or what keeps it from being one of SMAUG's."""
    if any(p.density < 1 or p.format != "dense" for p in e.tensors()):
        return unsupported(e.name, "optimizers of sparse tensors")
    if e.kind == "mac" and len(e.inputs) == 2:
        return _product(e)
    if e.kind.startswith("batchnorm") and len(e.inputs) == 5:
        return _normalised(e)
    if e.kind in ("max", "add") and len(e.inputs) == 1 and (e.inputs[0].partial() or set(e.sizes()) - e.output.ranks()):
        return _pooled(e)
    return _flat(e)


def _windows(e: Einsum, p: Projection) -> tuple[list[Dim], list[Dim]]:
    """Dimensions of the input that a window slides over or reduces whole, and the others."""
    out = e.output.ranks()
    slides = [d for d in p.dims if len(d.terms) > 1 or d.offset or any(c > 1 for _, c in d.terms)]
    return slides, [d for d in p.dims if d not in slides and (set(d.ranks()) & out or len(d.terms) == 1)]


def _window(e: Einsum, d: Dim) -> tuple[int, int, tuple[int, int], str, str] | None:
    """(window, stride, padding, output rank, window rank) of one dimension; None if it is dilated or cropped."""
    sizes, out = e.sizes(), e.output.ranks()
    moved, inside = [t for t in d.terms if t[0] in out], [t for t in d.terms if t[0] not in out]
    if len(moved) > 1 or len(inside) > 1 or any(c > 1 for _, c in inside) or d.offset > 0:
        return None
    rank, step = moved[0] if moved else ("", 1)
    size, made = sizes[inside[0][0]] if inside else 1, sizes.get(rank, 1)
    trail = max((made - 1) * step + size + d.offset - d.size, 0)
    if (d.size - d.offset + trail - size) // step + 1 != made or -d.offset >= size or trail >= size:
        return (size, step, (-d.offset, trail), rank, inside[0][0] if inside else "") if made == 1 and not d.offset and not trail and d.size == size else None
    return size, step, (-d.offset, trail), rank, inside[0][0] if inside else ""


def _spatial(e: Einsum, dims: list[Dim]) -> tuple[dict[str, str], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(ranks, sizes, kernel, stride, padding) of up to two windowed dimensions, rows first."""
    found = [_window(e, d) for d in dims]
    if len(dims) > 2 or None in found:
        return None
    rows = [w for w in found if w] + [(1, 1, (0, 0), "", "")] * (2 - len(dims))
    ranks = {letter: rank for letter, rank in zip("HRWS", (rows[0][3], rows[0][4], rows[1][3], rows[1][4]), strict=True) if rank}
    sizes = (*(d.size for d in dims), *(1,) * (2 - len(dims)))
    return ranks, sizes, (rows[0][0], rows[1][0]), (rows[0][1], rows[1][1]), (*rows[0][2], *rows[1][2])


def _product(e: Einsum) -> Reading | Infeasible:
    """A convolution, dense, grouped or depthwise, or a product of matrices."""
    x, w = e.inputs
    sizes, out, seen, kept = e.sizes(), e.output.ranks(), x.ranks(), w.ranks()
    groups = [r for r in sizes if r in out & seen & kept]
    made, summed = [r for r in sizes if r in (out & kept) - seen], [r for r in sizes if r in (seen & kept) - out]
    slides, alone = _windows(e, x)
    images = [d for d in alone if d.ranks() and d.ranks()[0] in out - kept]
    deep = [r for r in summed if any(d.ranks() == (r,) for d in alone)]
    if len(slides) == 0 and len(images) < 2 and len(deep) < 2:
        kind, spatial = "inner_product", None
    else:
        flat = [*images, *(d for d in alone if d.ranks() and d.ranks()[0] in deep[1:])]  # one channel rank; a window of one output, images of one tap
        slides = sorted([*slides, *flat[max(len(flat) - 2 + len(slides), 0):]], key=x.dims.index)
        kind, spatial = "convolution", _spatial(e, slides)
        if spatial is None:
            return unsupported(e.name, "optimizers of convolutions that are dilated, cropped or of three dimensions")
    ranks = dict(spatial[0]) if spatial else {}
    images = [d for d in images if d not in slides]
    deep = [r for r in deep if r not in ranks.values()]
    if kind == "convolution" and len(groups) == 1 and not made and not deep:
        kind, deep, groups = "depthwise", groups, []
    ranks |= {letter: names[0] for letter, names in (("N", [d.ranks()[0] for d in images]), ("C", deep), ("M", made)) if names}
    if len(images) > 1 or len(deep) > 1 or len(made) > 1 or set(ranks.values()) | set(groups) != set(sizes):
        return unsupported(e.name, "optimizers of products over such ranks")
    n, c, m = (sizes.get(ranks.get(letter, ""), 1) for letter in "NCM")
    named = tuple((rank, sizes[rank]) for rank in groups)
    if spatial is None:
        return Reading(Operator(kind, e.name, (n, c), outputs=m), ranks, named)
    _, (h, wide), (kh, kw), (sh, sw), (top, bottom, left, right) = spatial
    return Reading(Operator(kind, e.name, (n, h, wide, c), (kh, kw), m, (sh, sw), (top, bottom, left, right)), ranks, named)


def _pooled(e: Einsum) -> Reading | Infeasible:
    x, out = e.inputs[0], e.output.ranks()
    slides = [d for d in x.dims if len(d.terms) > 1 or d.offset or any(c > 1 or rank not in out for rank, c in d.terms)]
    rest = [d for d in x.dims if d not in slides and d.terms]
    while len(rest) > 2 > len(slides):
        slides = sorted([*slides, rest.pop()], key=x.dims.index)
    spatial = _spatial(e, slides)
    if spatial is None or len(rest) > 2:
        return unsupported(e.name, "optimizers of reductions over such windows")
    ranks = spatial[0] | {letter: d.ranks()[0] for letter, d in zip("CN", reversed(rest), strict=False)}
    _, (h, w), (kh, kw), (sh, sw), (top, bottom, left, right) = spatial
    n, c = (e.sizes().get(ranks.get(letter, ""), 1) for letter in "NC")
    return Reading(Operator("pooling", e.name, (n, h, w, c), (kh, kw), stride=(sh, sw), pads=(top, bottom, left, right)), ranks)


def _normalised(e: Einsum) -> Reading | Infeasible:
    channel = next(iter(e.inputs[1].ranks()), "")
    others = [d.ranks()[0] for d in e.inputs[0].dims if d.ranks() and d.ranks()[0] != channel]
    if any(p.ranks() != {channel} for p in e.inputs[1:]) or len(others) > 3 or e.inputs[0].partial():
        return unsupported(e.name, "optimizers of normalisations over such ranks")
    letters = {0: "", 1: "N", 2: "HW", 3: "NHW"}[len(others)]
    ranks = {**dict(zip(letters, others, strict=True)), "C": channel}
    shape = tuple(e.sizes().get(ranks.get(letter, ""), 1) for letter in ("NHWC" if len(others) > 1 else "NC"))
    return Reading(Operator("batch_norm", e.name, shape), ranks)


def _flat(e: Einsum) -> Reading | Infeasible:
    """Element by element, or a row-wise softmax; dimensions in the order rows, columns, channels."""
    ranks = [d.ranks()[0] for d in e.output.dims if len(d.terms) == 1]
    plain = all(p.full() == set(e.sizes()) and all(not d.offset and d.size == e.sizes()[d.ranks()[0]] for d in p.dims if d.terms) for p in e.tensors())
    if not plain or len(e.inputs) > 2 or len(ranks) != len(e.sizes()):
        return unsupported(e.name, f"optimizers of kind {e.kind} over such ranks")
    if e.kind == "softmax":
        if len(ranks) > 2:
            return unsupported(e.name, "optimizers of softmax over such ranks")
        row = dict(zip("CN", reversed(ranks), strict=False))
        return Reading(Operator("softmax", e.name, (e.sizes().get(row.get("N", ""), 1), e.sizes()[row["C"]])), row)
    order = [*ranks[:-3], *ranks[-2:], ranks[-3]] if len(ranks) > 2 else ranks
    shape = tuple(e.sizes()[rank] for rank in order)
    kind = "unary" if len(e.inputs) == 1 else "elementwise"
    return Reading(Operator(kind, e.name, shape if len(shape) > 1 else (1, *shape), operands=len(e.inputs)), {str(i): rank for i, rank in enumerate(order)})
