"""Reads an einsum as one of the operators that SMAUG tiles: convolution, matrix product, pooling,
normalisation, or element-wise.

The role of a rank follows from the tensors that have it, not from its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from dse.layout.primitive import reach
from dse.mapper.smaug.halo import Window
from dse.mapper.smaug.smaug import Operator, unsupported
from dse.mapping.nest import Infeasible
from workloads.einsum import Dim, Einsum, Projection


@dataclass(frozen=True, slots=True)
class Reading:
    """An einsum as an operator."""

    operator: Operator
    # dimension -> rank; dimensions are N H W C of the input, M of outputs, R S of the window
    ranks: dict[str, str]
    # (rank, size) of ranks over which the operator is repeated, one index after the other
    repeated_ranks: tuple[tuple[str, int], ...] = ()

    def repeats(self) -> int:
        """How often the operator runs."""
        return prod(size for _, size in self.repeated_ranks)


def read(e: Einsum) -> Reading | Infeasible:
    """The operator of an einsum, or why it is none of SMAUG's."""
    if any(p.density < 1 or p.format != "dense" for p in e.tensors()):
        return unsupported(e.name, "optimizers of sparse tensors")
    if e.kind == "mac" and len(e.inputs) == 2:
        return _product(e)
    if e.kind.startswith("batchnorm") and len(e.inputs) == 5:
        return _normalised(e)
    summed = set(e.sizes()) - e.output.ranks()
    if len(e.inputs) == 1 and (
        (e.kind in ("max", "add") and e.inputs[0].partial_ranks())
        or (summed and (e.kind in ("max", "add") or not _split_dims(e.inputs[0])[0]))
    ):
        return _pooled(e)
    return _flat(e)


@dataclass(frozen=True, slots=True)
class _Slide:
    """A dimension under a window, as in I[2*p+r]."""

    size: int  # elements stored along it
    window: Window
    moving_rank: str  # the rank p that moves the window, "" if there is none
    window_rank: str  # the rank r inside the window, "" if there is none
    taps: int = 1  # extent of the rank inside the window
    dilation: int = 1  # elements from one of these to the next


NO_WINDOW = _Slide(1, Window(1, 1), "", "")


def _split_dims(p: Projection) -> tuple[list[Dim], list[Dim]]:
    """Returns two lists: dimensions under a window (with several ranks, a stride or an offset), and
    dimensions that are one rank without these.
    """
    found = [d for d in p.dims if len(d.terms) > 1 or d.offset or any(c > 1 for _, c in d.terms)]
    return found, [d for d in p.dims if d not in found and d.terms]


def _slide(e: Einsum, d: Dim) -> _Slide | None:
    """The window of a dimension; None if it is cropped."""
    sizes, out = e.sizes(), e.output.ranks()
    moving_terms, window_terms = [t for t in d.terms if t[0] in out], [t for t in d.terms if t[0] not in out]
    if len(moving_terms) > 1 or len(window_terms) > 1 or any(c < 1 for _, c in d.terms) or d.offset > 0:
        return None
    (rank, step), (tap, dilation) = (
        moving_terms[0] if moving_terms else ("", 1),
        window_terms[0] if window_terms else ("", 1),
    )
    taps, outputs = sizes.get(tap, 1), sizes.get(rank, 1)
    size = reach(taps, 1, dilation)
    w = Window(size, step, -d.offset, max((outputs - 1) * step + size + d.offset - d.size, 0))
    return (
        _Slide(d.size, w, rank, tap, taps, dilation)
        if w.outputs(d.size) == outputs and max(w.lead, w.trail) < size
        else None
    )


def _spatial(e: Einsum, dims: list[Dim]) -> tuple[_Slide, _Slide] | None:
    """The windows over rows and over columns; None if there are more than two dimensions, or if one is
    cropped.
    """
    found = [s for s in (_slide(e, d) for d in dims) if s]
    if len(dims) > 2 or len(found) < len(dims):
        return None
    rows, columns = (*found, NO_WINDOW, NO_WINDOW)[:2]
    return rows, columns


def _image(
    kind: str, e: Einsum, image_slides: tuple[_Slide, _Slide], ranks: dict[str, str], groups: list[str]
) -> Reading:
    """The reading of an operator on images. image_slides: its windows over rows and columns; ranks: of N, C
    and M; groups: ranks over which the operator is repeated.
    """
    rows, columns = image_slides
    r, c = rows.window, columns.window
    ranks = {
        letter: rank
        for letter, rank in zip(
            "HRWS",
            (rows.moving_rank, rows.window_rank, columns.moving_rank, columns.window_rank),
            strict=True,
        )
        if rank
    } | ranks
    n, channels, m = (e.sizes().get(ranks.get(letter, ""), 1) for letter in "NCM")
    op = Operator(
        kind,
        e.name,
        (n, rows.size, columns.size, channels),
        (rows.taps, columns.taps),
        m,
        (r.step, c.step),
        (r.lead, r.trail, c.lead, c.trail),
        dilation=(rows.dilation, columns.dilation),
    )
    return Reading(op, ranks, tuple((rank, e.sizes()[rank]) for rank in groups))


def _product(e: Einsum) -> Reading | Infeasible:
    """The reading of a convolution (dense, grouped or depthwise) or of a matrix product."""
    if any(len(d.terms) > 1 for d in e.output.dims):
        return _transposed(e) or unsupported(e.name, "optimizers of products over such ranks")
    x, w = e.inputs
    sizes, out, input_ranks, weight_ranks = e.sizes(), e.output.ranks(), x.ranks(), w.ranks()
    groups = [r for r in sizes if r in out & input_ranks & weight_ranks]
    neuron_ranks = [r for r in sizes if r in (out & weight_ranks) - input_ranks]
    summed = [r for r in sizes if r in (input_ranks & weight_ranks) - out]
    slides, plain_dims = _split_dims(x)
    images = [d for d in plain_dims if d.ranks()[0] in out - weight_ranks]
    channel_dims = [d for d in plain_dims if d.ranks()[0] in summed]
    is_matrix = not slides and len(images) < 2 and len(channel_dims) < 2
    if not is_matrix:
        # An operator on images has one rank of channels. Further summed ranks are windows with one output.
        # If fewer than two dimensions slide, the last of these and of the output's ranks are rows or columns.
        flat = [*images, *channel_dims[1:]]
        slides = sorted([*slides, *flat[max(len(flat) - 2 + len(slides), 0) :]], key=x.dims.index)
    image_slides = _spatial(e, slides)
    if image_slides is None:
        return unsupported(e.name, "optimizers of convolutions that are cropped or of three dimensions")
    images, channels = (
        [d for d in images if d not in slides],
        [d.ranks()[0] for d in channel_dims if d not in slides],
    )
    is_depthwise = len(groups) == 1 and not neuron_ranks and not channels and not is_matrix
    if is_depthwise:
        channels, groups = groups, []
    ranks = {
        letter: names[0]
        for letter, names in (("N", [d.ranks()[0] for d in images]), ("C", channels), ("M", neuron_ranks))
        if names
    }
    found = _image("depthwise" if is_depthwise else "convolution", e, image_slides, ranks, groups)
    if set(found.ranks.values()) | set(groups) != set(sizes):
        return unsupported(e.name, "optimizers of products over such ranks")
    if not is_matrix:
        return found
    op = found.operator
    return Reading(
        Operator("inner_product", e.name, (op.shape[0], op.shape[3]), outputs=op.outputs),
        ranks,
        found.repeated_ranks,
    )


def _transposed(e: Einsum) -> Reading | None:
    """The reading of a transposed convolution, whose output is under the window; None if it is none."""
    (x, w), sizes, out = e.inputs, e.sizes(), e.output
    slides, plain = [d for d in out.dims if len(d.terms) > 1], [d for d in out.dims if len(d.terms) == 1]
    whole = (*x.dims, *w.dims, *plain)
    if len(slides) > 2 or any(
        d.terms and (len(d.terms) > 1 or d.terms[0][1] != 1 or d.offset or d.size != sizes[d.terms[0][0]])
        for d in whole
    ):
        return None
    found = []
    for d in slides:
        moving = [term for term in d.terms if term[0] in x.ranks() - w.ranks()]
        window = [term for term in d.terms if term[0] in w.ranks() - x.ranks()]
        if len(d.terms) != 2 or len(moving) != 1 or len(window) != 1 or min(c for _, c in d.terms) < 1:
            return None
        (rank, step), (tap, dilation) = moving[0], window[0]
        trail = reach(sizes[rank], reach(sizes[tap], 1, dilation), step) + d.offset - d.size
        if min(-d.offset, trail) < 0 or step > reach(sizes[tap], 1, dilation):
            return None
        w_of = Window(reach(sizes[tap], 1, dilation), step, -d.offset, trail)
        found.append(_Slide(sizes[rank], w_of, rank, tap, sizes[tap], dilation))
    named = {rank for one in found for rank in (one.moving_rank, one.window_rank)}
    groups = [rank for rank in sizes if rank in out.ranks() & x.ranks() & w.ranks()]
    others = [rank for rank in sizes if rank not in named and rank not in groups]
    letters = {
        "N": [rank for rank in others if rank not in w.ranks()],
        "C": [rank for rank in others if rank not in out.ranks()],
        "M": [rank for rank in others if rank not in x.ranks()],
    }
    if any(len(ranks) > 1 for ranks in letters.values()) or sum(map(len, letters.values())) != len(others):
        return None
    return _image(
        "transposed",
        e,
        (found[0], found[1] if len(found) > 1 else NO_WINDOW),
        {letter: ranks[0] for letter, ranks in letters.items() if ranks},
        groups,
    )


def _pooled(e: Einsum) -> Reading | Infeasible:
    """The reading of a pooling."""
    x, out = e.inputs[0], e.output.ranks()
    slides, plain_dims = _split_dims(x)
    slides = [d for d in x.dims if d in slides or (d.terms and d.ranks()[0] not in out)]
    other_dims = [d for d in plain_dims if d not in slides]
    while len(other_dims) > 2 > len(slides):
        slides = sorted([*slides, other_dims.pop()], key=x.dims.index)
    image_slides = _spatial(e, slides)
    if image_slides is None or len(other_dims) > 2:
        return unsupported(e.name, "optimizers of reductions over such windows")
    found = _image(
        "pooling",
        e,
        image_slides,
        {letter: d.ranks()[0] for letter, d in zip("CN", reversed(other_dims), strict=False)},
        [],
    )
    return replace(found, operator=replace(found.operator, outputs=0))


def _normalised(e: Einsum) -> Reading | Infeasible:
    """The reading of a batch normalisation."""
    channel = next(iter(e.inputs[1].ranks()), "")
    others = [d.ranks()[0] for d in e.inputs[0].dims if d.ranks() and d.ranks()[0] != channel]
    if any(p.ranks() != {channel} for p in e.inputs[1:]) or len(others) > 3 or e.inputs[0].partial_ranks():
        return unsupported(e.name, "optimizers of normalisations over such ranks")
    letters = {0: "", 1: "N", 2: "HW", 3: "NHW"}[len(others)]
    ranks = {**dict(zip(letters, others, strict=True)), "C": channel}
    shape = tuple(e.sizes().get(ranks.get(letter, ""), 1) for letter in ("NHWC" if len(others) > 1 else "NC"))
    return Reading(Operator("batch_norm", e.name, shape), ranks)


def _flat(e: Einsum) -> Reading | Infeasible:
    """The reading of an element-wise operator, an operator of rows, or a copy of several inputs into one
    output. Dimensions are in the order rows, columns, channels.
    """
    ranks = [d.ranks()[0] for d in e.output.dims if len(d.terms) == 1]
    is_copy = e.kind == "copy" and sum(p.stored_elems() for p in e.inputs) == e.output.stored_elems()
    is_plain = all(_plain(p, e) for p in ((e.output,) if is_copy else e.tensors()))
    if e.kind == "softmax" or not is_plain or (len(e.inputs) > 2 and not is_copy):
        return _row_wise(e, ranks) or unsupported(e.name, f"optimizers of kind {e.kind} over such ranks")
    order = [*ranks[:-3], *ranks[-2:], ranks[-3]] if len(ranks) > 2 else ranks
    shape = tuple(e.sizes()[rank] for rank in order)
    kind, operands = ("unary", 1) if is_copy or len(e.inputs) == 1 else ("elementwise", len(e.inputs))
    return Reading(
        Operator(kind, e.name, shape if len(shape) > 1 else (1, *shape), operands=operands),
        {str(i): rank for i, rank in enumerate(order)},
    )


def _row_wise(e: Einsum, ranks: list[str]) -> Reading | None:
    """The reading of a softmax, or of an element-wise operator with operands of some of its ranks (a scale
    per row, a bias per column) or with a part of a larger tensor, row by row along the last rank; None if it
    is neither. Ranks outside of rows and columns repeat it.
    """
    sizes = e.sizes()
    if not ranks or set(ranks) != set(sizes) or not _plain(e.output, e) or e.inputs[0].ranks() != set(ranks):
        return None
    row, column = ranks[-2] if len(ranks) > 1 else "", ranks[-1]
    for d in (d for p in e.inputs for d in p.dims if d.terms):
        if len(d.terms) > 1 or d.terms[0][1] != 1 or not 0 <= d.offset <= d.size - sizes[d.terms[0][0]]:
            return None
    others = tuple(
        (sizes.get(row, 1) if row in p.ranks() else 1, sizes[column] if column in p.ranks() else 1)
        for p in e.inputs[1:]
    )
    return Reading(
        Operator(
            "softmax" if e.kind == "softmax" and not others else "rows",
            e.name,
            (sizes.get(row, 1), sizes[column]),
            others=others,
        ),
        {letter: rank for letter, rank in (("N", row), ("C", column)) if rank},
        tuple((rank, sizes[rank]) for rank in ranks[:-2]),
    )


def _plain(p: Projection, e: Einsum) -> bool:
    """Whether every rank of the einsum is alone in a dimension of its size."""
    return p.full_ranks() == set(e.sizes()) and all(
        not d.offset and d.size == e.sizes()[d.ranks()[0]] for d in p.dims if d.terms
    )
