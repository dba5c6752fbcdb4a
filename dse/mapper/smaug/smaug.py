"""SMAUG's tiling optimizers: one function per kind of operator, Operator -> Tiling | Infeasible, and the
table OPTIMIZERS of them.

Each optimizer chooses by `strategy` which dimensions of its tensors may be cut, enumerates tile shapes, takes
the first one that fills the scratchpads most, cuts the tensors, and gives the loop nest over the tiles.
Source: Xi et al. 2020 and the code of its SMV backend.

faithful: as published, with its defects.
Otherwise (corrected): without the defects. The innermost dimension of each candidate is padded for the
    candidate's extent, not for that of the full tensor.

Both modes are extended by padding that differs from side to side, depthwise convolution and attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from dse.mapper.smaug.factor import (
    Shape,
    Unit,
    cuts_dim,
    enumerate_tiles,
    layout_of,
    minimum_tile,
    multiples,
    stored_elems,
    stored_elems_each,
    strategy,
)
from dse.mapper.smaug.halo import Cut, Tiled, Window, cut, cut_outputs, cut_windows
from dse.mapper.smaug.schedule import Nest, nest
from dse.mapping.nest import Infeasible
from workloads.arrays import Ints


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that is tiled."""

    kind: str
    name: str
    # of the input: [batch, rows, columns, channels] or [batch, activations]; attention: [heads, queries,
    # depth]
    shape: Shape
    kernel: tuple[int, int] = (1, 1)  # rows and columns of a kernel or a pooling window
    outputs: int = 0  # kernels, neurons, or positions of the context
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # zeros above, below, left and right
    operands: int = 1  # inputs of one shape (element-wise)

    def windows(self) -> tuple[Window, Window]:
        """The windows over rows and over columns."""
        (kh, kw), (sh, sw), (top, bottom, left, right) = self.kernel, self.stride, self.pads
        return Window(kh, sh, top, bottom), Window(kw, sw, left, right)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiling of an operator."""

    operator: Operator
    tensors: dict[str, Tiled]  # tiles of every tensor, the output last
    nest: Nest  # the nest that schedules them


Optimizer = Callable[[Operator, Unit, bool], Tiling | Infeasible]


def same_padding(kernel: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding that keeps the size at stride 1, the larger half above and left."""
    (top, bottom), (left, right) = ((k // 2, k - 1 - k // 2) for k in kernel)
    return top, bottom, left, right


def tile(op: Operator, u: Unit, faithful: bool = False) -> Tiling | Infeasible:
    """The tiling of one operator; Infeasible where no tile fits, or where there is no optimizer for its
    kind."""
    if op.kind not in OPTIMIZERS:
        return unsupported(op.name, f"optimizers of kind {op.kind}")
    if (
        op.kind in WINDOWED
        and min(w.outputs(n) for w, n in zip(op.windows(), op.shape[1:3], strict=True)) < 1
    ):
        return unsupported(op.name, "inputs as large as the kernel")
    return OPTIMIZERS[op.kind](op, u, faithful)


def unsupported(name: str, what: str) -> Infeasible:
    """The result for an einsum that SMAUG has no tiling for. what: what SMAUG lacks, in words."""
    return Infeasible("SMAUG", 1, 0, name, what)


def _no_tile_fits(op: Operator, u: Unit, holder: int, elems: int) -> Infeasible:
    """The result where no tile fits.

    holder: the scratchpad that is too small: 0 inputs, 1 weights, 2 outputs.
    elems: elements of the smallest tile.
    """
    return Infeasible(u.names[holder], elems * u.elem_bytes, u.tile_bytes, op.name)


def _labels(op: Operator, u: Unit, shapes: dict[str, Shape], kind: str = "") -> dict[str, str] | Infeasible:
    """Per tensor the label of the dimensions that may be cut, by the machine's minimum tiles."""
    found = {}
    for holder, name in enumerate(("inputs", "weights", "outputs")):
        if name in shapes:
            label = strategy(
                shapes[name], minimum_tile(u, f"{kind or op.kind}.{name}", shapes[name], op.kernel), u
            )
            if isinstance(label, int):
                return _no_tile_fits(op, u, holder, label)
            found[name] = label
    return found


def _inputs(
    op: Operator, u: Unit, shape: Shape, label: str, step: Shape, kind: str = ""
) -> Ints | Infeasible:
    """Input tiles that fit, in SMAUG's order: it takes the first of equally good ones. Under a window, the
    smallest tile holds complete windows (size + i * step elements), or the complete dimension.
    """
    minimum = minimum_tile(u, f"{kind or op.kind}.inputs", shape, op.kernel)
    if op.kind in WINDOWED:
        whole_windows = (
            m if m == n else w.size + (m - w.size) // w.step * w.step
            for m, n, w in zip(minimum[1:3], shape[1:3], op.windows(), strict=True)
        )
        minimum = (minimum[0], *whole_windows, minimum[3])
    found = enumerate_tiles(shape, label, minimum, step, u)
    if len(found):
        return found
    layout = layout_of(shape)
    return _no_tile_fits(
        op,
        u,
        0,
        stored_elems(
            [m if cuts_dim(label, dim) else n for dim, m, n in zip(layout, minimum, shape, strict=True)], u
        ),
    )


def _output_extents(extents: Ints, full: int, w: Window, faithful: bool) -> Ints:
    """Largest output extents, for extents of input tiles: over the first tile (with the leading
    padding), the middle tiles, and the last tile (with the trailing padding).

    faithful: only the leading padding counts, as in SMAUG.
    """
    padding = w.lead if faithful else max(w.lead, w.trail)
    found = (extents + padding - w.size) // w.step + 1
    return (
        found if faithful else np.where(extents == full, w.outputs(full), np.minimum(found, w.outputs(full)))
    )


def _uncut(n: int) -> tuple[Cut, ...]:
    """A dimension that is not cut."""
    return ((0, n),)


def _plain(shape: Shape, label: str, tile_shape: Shape) -> Tiled:
    """A tensor cut into tiles without windows."""
    return Tiled(shape, label, tile_shape, tuple(cut(n, t) for n, t in zip(shape, tile_shape, strict=True)))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Tile sizes of a product of inputs and weights."""

    input_tile: Shape  # shape of the input tile
    kernels: int  # of the weight tile
    channels: int  # of the weight tile
    outputs: int  # channels of the output tile


def _choose(
    op: Operator,
    u: Unit,
    xs: Ints,
    area: Ints,
    weights: Shape,
    labels: dict[str, str],
    fixed_slack: tuple[int | None, int | None, int | None],
    independent: bool,
) -> _Choice | Infeasible:
    """The first of the combinations of tiles that fill the scratchpads most, as in SMAUG's SMV backend.

    xs: candidates of the input tile. area: per candidate, output elements per output channel. independent:
    whether the output tile's channels are independent of the weight tile's kernels. fixed_slack: elements of
    padding of the innermost dimension of inputs, weights and outputs, where it is that of
        the full tensor; None: what the tile's extent needs.
    """
    m, taps, full = weights[0], prod(weights[1:-1]), weights[-1]
    ns = multiples(u.pes, m, u.pes) if labels["weights"] != "None" else np.array([m])
    cuts_channels = cuts_dim(labels["weights"], "C") and not cuts_dim(labels["inputs"], "C")
    ns, cs = (
        g.ravel()
        for g in np.meshgrid(
            ns, multiples(u.macs, full, u.macs) if cuts_channels else np.array([0]), indexing="ij"
        )
    )
    ws = np.stack(np.broadcast_arrays(ns * taps, cs if cuts_channels else xs[:, -1:]), axis=-1)
    w_elems = stored_elems_each(ws.reshape(-1, 2), u, fixed_slack[1]).reshape(ws.shape[:-1]) * np.ones(
        (len(xs), 1), np.int64
    )
    os = (
        multiples(u.pes, m, u.pes)
        if independent and labels["outputs"] != "None"
        else np.array([m])
        if independent
        else ns
    )
    outs = np.stack(np.broadcast_arrays(area[:, None], os), axis=-1)
    o_elems = stored_elems_each(outs.reshape(-1, 2), u, fixed_slack[2]).reshape(outs.shape[:-1])
    w_all, o_all = (
        (w_elems[:, :, None], o_elems[:, None, :])
        if independent
        else (w_elems[:, :, None], o_elems[:, :, None])
    )
    score = stored_elems_each(xs, u, fixed_slack[0])[:, None, None] + w_all + o_all
    fits = (w_all <= u.max_elems()) & (o_all <= u.max_elems())
    if not fits.any():
        return (
            _no_tile_fits(op, u, 1, int(w_elems.min()))
            if w_elems.min() > u.max_elems()
            else _no_tile_fits(op, u, 2, int(o_elems.min()))
        )
    i, j, k = (int(at) for at in np.unravel_index(int(np.where(fits, score, -1).argmax()), score.shape))
    x = tuple(int(n) for n in xs[i])
    return _Choice(x, int(ns[j]), int(cs[j]) if cuts_channels else x[-1], int(os[k if independent else j]))


def convolution(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] with kernels [m, kh, kw, c]. Corrected: every image is a tile of its own; SMAUG computes
    the output of one image only.
    """
    (n, h, w, c), m, (rows, columns) = op.shape, op.outputs, op.windows()
    image, ho, wo = (n if faithful else 1, h, w, c), rows.outputs(h), columns.outputs(w)
    weights, image_outputs = (m, *op.kernel, c), (1, ho, wo, m)
    labels = _labels(op, u, {"inputs": image, "weights": weights, "outputs": image_outputs})
    if isinstance(labels, Infeasible):
        return labels
    if labels["weights"] != "None":
        labels["outputs"] = "DimNC"
    if cuts_rows := cuts_dim(labels["inputs"], "H"):
        labels["outputs"] = "DimNCH" if cuts_dim(labels["outputs"], "C") else "DimNH"
    xs = _inputs(op, u, image, labels["inputs"], (1, rows.step, 1, u.macs))
    if isinstance(xs, Infeasible):
        return xs
    area = xs[:, 0] * (_output_extents(xs[:, 1], h, rows, faithful) if cuts_rows else ho) * wo
    fixed_slack = (None, u.slack(c), u.slack(m)) if faithful else (None, None, None)
    best = _choose(
        op,
        u,
        xs,
        area,
        weights,
        labels,
        fixed_slack,
        independent=not cuts_rows and labels["weights"] == "None",
    )
    if isinstance(best, Infeasible):
        return best
    if n > 1 and not faithful and labels["inputs"] == "None":
        labels["inputs"] = "DimN"
    cuts = cut_windows(h, best.input_tile[1], rows, not faithful)
    image_count = 1 if faithful else n
    output_tile = (
        best.input_tile[0],
        int(_output_extents(np.array([best.input_tile[1]]), h, rows, faithful)[0]) if cuts_rows else ho,
        wo,
        best.outputs,
    )
    tensors = {
        "inputs": Tiled(
            op.shape,
            labels["inputs"],
            best.input_tile,
            (cut(n, best.input_tile[0]), cuts, cut_windows(w, w, columns), cut(c, best.input_tile[3])),
        ),
        "weights": _plain(weights, labels["weights"], (best.kernels, *op.kernel, best.channels)),
        "outputs": Tiled(
            (image_count, ho, wo, m),
            labels["outputs"],
            output_tile,
            (
                cut(image_count, output_tile[0]),
                cut_outputs(cuts, rows) if cuts_rows else _uncut(ho),
                _uncut(wo),
                cut(m, best.outputs),
            ),
        ),
    }
    return Tiling(op, tensors, _product_nest(tensors, "n h 0 c", "m 0 0 c", "n h 0 m+o"))


def _product_nest(
    tensors: dict[str, Tiled],
    inputs: str,
    weights: str,
    outputs: str,
    always: bool = False,
    last_only: bool = False,
) -> Nest:
    """Loops over images, rows, kernels, output channels inside of a weight tile, and input channels. All
    calls for the same image, rows and kernel tile run on the same accelerator.
    """
    grids = {name: t.grid() for name, t in tensors.items()}
    output_tiles, m = grids["outputs"][-1], grids["weights"][0]
    loops = {
        "n": grids["inputs"][0],
        "h": grids["outputs"][1] if len(grids["outputs"]) == 4 else 1,
        "m": m,
        "o": output_tiles if m < output_tiles else 1,
        "c": grids["weights"][-1],
    }
    index = {"inputs": inputs, "weights": weights, "outputs": outputs}
    return nest(loops, tensors, index, "o c", ("weights",) if always else (), "c", last_only)


def inner_product(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, activations] with weights [neurons, activations]. faithful: results go back only after the very
    last call, as in SMAUG.
    """
    (n, a), q = op.shape, op.outputs
    shapes: dict[str, Shape] = {"inputs": (n, a), "weights": (q, a), "outputs": (n, q)}
    labels = _labels(op, u, shapes)
    if isinstance(labels, Infeasible):
        return labels
    if labels["weights"] != "None" and labels["outputs"] != "None":
        labels["outputs"] = "DimNC"
    xs = _inputs(op, u, (n, a), labels["inputs"], (1, u.macs))
    if isinstance(xs, Infeasible):
        return xs
    fixed_slack = (
        (None, None if labels["weights"] == "DimN" else u.slack(a), u.slack(q))
        if faithful
        else (None, None, None)
    )
    independent = labels["weights"] == "None" or labels["outputs"] == "None"
    best = _choose(op, u, xs, xs[:, 0], (q, a), labels, fixed_slack, independent)
    if isinstance(best, Infeasible):
        return best
    tiles = {
        "inputs": best.input_tile,
        "weights": (best.kernels, best.channels),
        "outputs": (best.input_tile[0], best.outputs),
    }
    tensors = {name: _plain(shapes[name], labels[name], tiles[name]) for name in shapes}
    return Tiling(op, tensors, _product_nest(tensors, "n c", "m c", "n m+o", always=True, last_only=faithful))


def pooling(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] under a window. Corrected: the output is cut in every dimension in which the input is, and
    a last tile too small for a window is left out.
    """
    if faithful and any(op.pads):
        return unsupported(op.name, "pooling with padding (faithful mode)")
    (n, h, w, c), (rows, columns) = op.shape, op.windows()
    full = (n, rows.outputs(h), columns.outputs(w), c)
    labels = _labels(op, u, {"inputs": op.shape, "outputs": full})
    if isinstance(labels, Infeasible):
        return labels
    labels["outputs"] = _pooled_label(labels["inputs"], labels["outputs"], faithful)
    cuts_rows, cuts_columns, cuts_channels = (cuts_dim(labels["outputs"], dim) for dim in "HWC")
    xs = _inputs(op, u, op.shape, labels["inputs"], (1, rows.step, columns.step, u.vector))
    if isinstance(xs, Infeasible):
        return xs
    outs = np.broadcast_to(np.array(full), xs.shape).copy()
    outs[:, 0] = xs[:, 0]
    outs[:, 1] = _output_extents(xs[:, 1], h, rows, faithful) if cuts_rows else full[1]
    outs[:, 2] = _output_extents(xs[:, 2], w, columns, faithful) if cuts_columns else full[2]
    outs[:, 3] = xs[:, 3] if cuts_channels and cuts_dim(labels["inputs"], "C") else c
    sizes = stored_elems_each(outs, u, u.slack(c) if faithful else None)
    fits = sizes <= u.max_elems()
    if not fits.any():
        return _no_tile_fits(op, u, 2, int(sizes.min()))
    best = int(np.where(fits, stored_elems_each(xs, u) + sizes, -1).argmax())
    x, out = (tuple(int(i) for i in shapes[best]) for shapes in (xs, outs))
    high_cuts = cut_windows(h, x[1], rows, not faithful)
    wide_cuts = cut_windows(w, x[2], columns, not faithful)
    output = _plain(full, labels["outputs"], out)
    if not faithful:
        output = Tiled(
            full,
            output.label,
            out,
            (output.cuts[0], cut_outputs(high_cuts, rows), cut_outputs(wide_cuts, columns), output.cuts[3]),
        )
        high_cuts, wide_cuts = high_cuts[: len(output.cuts[1])], wide_cuts[: len(output.cuts[2])]
    tensors = {
        "inputs": Tiled(op.shape, labels["inputs"], x, (cut(n, x[0]), high_cuts, wide_cuts, cut(c, x[3]))),
        "outputs": output,
    }
    loops = {
        dim: min(ours, theirs)
        for dim, ours, theirs in zip("nhw", output.grid(), tensors["inputs"].grid(), strict=False)
    }
    loops["c"] = tensors["inputs"].grid()[3]
    return Tiling(op, tensors, nest(loops, tensors, {"inputs": "n h w c", "outputs": "n h w c"}, "c"))


def _pooled_label(inputs: str, outputs: str, faithful: bool) -> str:
    cuts_channels, cuts_rows, cuts_columns = (cuts_dim(outputs, dim) for dim in "CHW")
    if not faithful and cuts_dim(inputs, "H") and cuts_dim(inputs, "W"):
        return "DimNHW"  # no label has channels as well
    if cuts_dim(inputs, "H"):
        outputs = "DimNCH" if cuts_channels else "DimNHW" if cuts_columns and faithful else "DimNH"
    if cuts_dim(inputs, "W"):
        cuts_channels, cuts_rows = cuts_dim(outputs, "C"), cuts_dim(outputs, "H")
        outputs = "DimNCW" if cuts_channels else "DimNHW" if cuts_rows and faithful else "DimNW"
    return outputs


def batch_norm(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] or [n, activations]; weights: mean, variance, gamma, beta, stacked."""
    weights = (4, op.shape[-1])
    kind = "batch_norm" if len(op.shape) == 4 else "batch_norm_2d"
    inputs, stacked = _labels(op, u, {"inputs": op.shape}, kind), _labels(op, u, {"weights": weights})
    for found in (inputs, stacked):
        if isinstance(found, Infeasible):
            return found
    assert isinstance(inputs, dict)
    assert isinstance(stacked, dict)
    label, stacked_label = inputs["inputs"], stacked["weights"]
    if kind == "batch_norm" and stacked_label != "None":
        return _no_tile_fits(op, u, 1, stored_elems(weights, u))
    xs = _inputs(op, u, op.shape, label, (1, *[u.vector] * (len(op.shape) - 1)), kind)
    if isinstance(xs, Infeasible):
        return xs
    ws = np.stack([np.full(len(xs), 4), np.full(len(xs), op.shape[-1])], axis=1)
    if stacked_label != "None" and cuts_dim(label, "C"):
        ws[:, 1] = xs[:, 1]
    elif stacked_label != "None":
        parts = multiples(u.vector, op.shape[-1], u.vector)
        xs, ws = (
            np.repeat(xs, len(parts), axis=0),
            np.stack([np.full(len(xs) * len(parts), 4), np.tile(parts, len(xs))], axis=1),
        )
    sizes = stored_elems_each(ws, u, u.slack(op.shape[-1]) if faithful else None)
    fits = sizes <= u.max_elems()
    if faithful and stacked_label != "None" and cuts_dim(label, "C"):
        # upstream stops at the first that does not fit, so larger batch tiles are never seen
        fits = np.logical_and.accumulate(fits)
    if not fits.any():
        return _no_tile_fits(op, u, 1, int(sizes.min()))
    best = int(np.where(fits, 2 * stored_elems_each(xs, u) + sizes, -1).argmax())
    x = tuple(int(i) for i in xs[best])
    tensors = {
        "inputs": _plain(op.shape, label, x),
        "weights": _plain(weights, stacked_label, (4, int(ws[best, 1]))),
        "outputs": _plain(op.shape, label, x),
    }
    names, grid = "nhwc" if len(x) == 4 else "nc", tensors["inputs"].grid()
    loops = dict(zip(names, grid, strict=True)) | {"c": max(grid[-1], tensors["weights"].grid()[-1])}
    words = " ".join(names)
    return Tiling(
        op,
        tensors,
        nest(
            loops, tensors, {"inputs": words, "weights": "0 c", "outputs": words}, "" if len(x) == 4 else "c"
        ),
    )


def elementwise(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """Any shape, one operand or more: the stored elements of all tensors are cut alike, into runs of
    consecutive ones, and visited together.
    """
    total = stored_elems(op.shape, u)
    names = ["inputs", *(f"inputs_{i}" for i in range(2, op.operands + 1)), "outputs"]
    tensors = {
        name: _plain((1, total), "None" if total <= u.max_elems() else "flat", (1, min(u.max_elems(), total)))
        for name in names
    }
    return Tiling(op, tensors, nest({"t": tensors["inputs"].grid()[1]}, tensors, dict.fromkeys(names, "0 t")))


def softmax(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, activations]: a row is never cut."""
    row = stored_elems(op.shape[1:], u)
    if row > u.max_elems():
        return _no_tile_fits(op, u, 0, row)
    rows = min(op.shape[0], u.max_elems() // row)
    label = "None" if rows == op.shape[0] else "DimN"
    tensors = {name: _plain(op.shape, label, (rows, op.shape[1])) for name in ("inputs", "outputs")}
    return Tiling(
        op, tensors, nest({"n": tensors["inputs"].grid()[0]}, tensors, dict.fromkeys(tensors, "n 0"))
    )


def depthwise(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] with one kernel [1, kh, kw, c] per channel; SMAUG has no such operator. All tensors are
    cut alike in channels and rows.
    """
    (n, h, w, c), (rows, columns) = op.shape, op.windows()
    image, ho, wo = (1, h, w, c), rows.outputs(h), columns.outputs(w)
    labels = _labels(op, u, {"inputs": image})
    if isinstance(labels, Infeasible):
        return labels
    label = labels["inputs"]
    xs = _inputs(op, u, image, label, (1, rows.step, 1, u.vector))
    if isinstance(xs, Infeasible):
        return xs
    output_rows = _output_extents(xs[:, 1], h, rows, faithful=False)
    ws, outs = (
        stored_elems_each(np.stack([size, xs[:, 3]], axis=1), u)
        for size in (np.full(len(xs), prod(op.kernel)), output_rows * wo)
    )
    fits = (ws <= u.max_elems()) & (outs <= u.max_elems())
    if not fits.any():
        return (
            _no_tile_fits(op, u, 1, int(ws.min()))
            if ws.min() > u.max_elems()
            else _no_tile_fits(op, u, 2, int(outs.min()))
        )
    best = int(np.where(fits, stored_elems_each(xs, u) + ws + outs, -1).argmax())
    x, cuts = tuple(int(i) for i in xs[best]), cut_windows(h, int(xs[best, 1]), rows)
    label = "DimN" if n > 1 and label == "None" else label
    tensors = {
        "inputs": Tiled(op.shape, label, x, (cut(n, 1), cuts, _uncut(w), cut(c, x[3]))),
        "weights": _plain((1, *op.kernel, c), "DimNC" if x[3] < c else "None", (1, *op.kernel, x[3])),
        "outputs": Tiled(
            (n, ho, wo, c),
            label,
            (1, int(output_rows[best]), wo, x[3]),
            (cut(n, 1), cut_outputs(cuts, rows), _uncut(wo), cut(c, x[3])),
        ),
    }
    loops = dict(
        zip("nhc", (n, len(tensors["outputs"].cuts[1]), len(tensors["inputs"].cuts[3])), strict=True)
    )
    return Tiling(
        op, tensors, nest(loops, tensors, {"inputs": "n h 0 c", "weights": "0 0 0 c", "outputs": "n h 0 c"})
    )


def attention(op: Operator, u: Unit, faithful: bool) -> Tiling | Infeasible:
    """[heads, queries, depth] over a context of op.outputs positions, in one pass; SMAUG has no such
    operator.

    Keys and values share the scratchpad of the weights. The one of the output also holds the scores of a tile
    and the running maximum and sum of each query.
    """
    (heads, queries, d), context = op.shape, op.outputs
    steps = (
        minimum_tile(u, "attention.queries", op.shape)[1],
        minimum_tile(u, "attention.keys", (heads, context, d))[1],
    )
    rows, keys = (
        g.ravel()
        for g in np.meshgrid(
            multiples(steps[0], queries, steps[0]), multiples(steps[1], context, steps[1]), indexing="ij"
        )
    )
    row_elems = stored_elems((1, d), u)
    sizes = np.stack(
        [
            rows * row_elems,
            2 * keys * row_elems,
            rows * (row_elems + 2) + stored_elems_each(np.stack([rows, keys], axis=1), u),
        ]
    )
    fits = (sizes <= u.max_elems()).all(axis=0)
    if not fits.any():
        holder = int((sizes.min(axis=1) > u.max_elems()).argmax())
        return _no_tile_fits(op, u, holder, int(sizes[holder].min()))
    best = int(np.where(fits, sizes.sum(axis=0), -1).argmax())
    row, key = (1, int(rows[best]), d), (1, int(keys[best]), d)
    cached: Shape = (heads, context, d)
    tensors = {
        "inputs": _plain(op.shape, "DimNH", row),
        "keys": _plain(cached, "DimNH", key),
        "values": _plain(cached, "DimNH", key),
        "outputs": _plain(op.shape, "DimNH", row),
    }
    loops = {"n": heads, "h": len(tensors["inputs"].cuts[1]), "c": len(tensors["keys"].cuts[1])}
    return Tiling(
        op,
        tensors,
        nest(
            loops,
            tensors,
            {"inputs": "n h 0", "keys": "n c 0", "values": "n c 0", "outputs": "n h 0"},
            "c",
            reduces="c",
        ),
    )


WINDOWED = ("convolution", "depthwise", "pooling")
OPTIMIZERS: dict[str, Optimizer] = {
    "convolution": convolution,
    "inner_product": inner_product,
    "pooling": pooling,
    "batch_norm": batch_norm,
    "unary": elementwise,
    "elementwise": elementwise,
    "softmax": softmax,
    "depthwise": depthwise,
    "attention": attention,
}
