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

from dse.layout.primitive import reach
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
from dse.mapping.nest import NO_TILES, Infeasible
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
    dilation: tuple[int, int] = (1, 1)  # from one row (column) of the kernel to the next
    # rows: further operands, each [n, activations], or with 1 in place of either
    others: tuple[Shape, ...] = ()

    def windows(self) -> tuple[Window, Window]:
        """The windows over rows and over columns, as long as what a dilated kernel spans."""
        (sh, sw), (top, bottom, left, right) = self.stride, self.pads
        kh, kw = (reach(k, 1, d) for k, d in zip(self.kernel, self.dilation, strict=True))
        return Window(kh, sh, top, bottom), Window(kw, sw, left, right)

    def spans(self) -> tuple[int, int]:
        """Rows and columns that a window spans."""
        rows, columns = self.windows()
        return rows.size, columns.size


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


def tile(op: Operator, machine: Unit, faithful: bool = False) -> Tiling | Infeasible:
    """The tiling of one operator; Infeasible where no tile fits, or where there is no optimizer for its
    kind."""
    if op.kind not in OPTIMIZERS:
        return unsupported(op.name, f"optimizers of kind {op.kind}")
    if (
        op.kind in WINDOWED
        and min(w.outputs(n) for w, n in zip(op.windows(), op.shape[1:3], strict=True)) < 1
    ):
        return unsupported(op.name, "inputs as large as the kernel")
    return OPTIMIZERS[op.kind](op, machine, faithful)


def unsupported(name: str, what: str) -> Infeasible:
    """The result for an einsum that SMAUG has no tiling for. what: what SMAUG lacks, in words."""
    return Infeasible(NO_TILES, 1, 0, name, what)


def _no_tile_fits(op: Operator, machine: Unit, holder: int, elems: int) -> Infeasible:
    """The result where no tile fits.

    holder: the scratchpad that is too small: 0 inputs, 1 weights, 2 outputs.
    elems: elements of the smallest tile.
    """
    return Infeasible(machine.names[holder], elems * machine.elem_bytes, machine.tile_bytes, op.name)


def _labels(
    op: Operator, machine: Unit, shapes: dict[str, Shape], kind: str = ""
) -> dict[str, str] | Infeasible:
    """Per tensor the label of the dimensions that may be cut, by the machine's minimum tiles."""
    found = {}
    for holder, name in enumerate(("inputs", "weights", "outputs")):
        if name in shapes:
            label = strategy(
                shapes[name],
                minimum_tile(machine, f"{kind or op.kind}.{name}", shapes[name], op.spans()),
                machine,
            )
            if isinstance(label, int):
                return _no_tile_fits(op, machine, holder, label)
            found[name] = label
    return found


def _inputs(
    op: Operator, machine: Unit, shape: Shape, label: str, step: Shape, kind: str = ""
) -> Ints | Infeasible:
    """Input tiles that fit, in SMAUG's order: it takes the first of equally good ones. Under a window, the
    smallest tile holds complete windows (size + i * step elements), or the complete dimension.
    """
    minimum = minimum_tile(machine, f"{kind or op.kind}.inputs", shape, op.spans())
    if op.kind in WINDOWED:
        whole_windows = (
            m if m == n else w.size + (m - w.size) // w.step * w.step
            for m, n, w in zip(minimum[1:3], shape[1:3], op.windows(), strict=True)
        )
        minimum = (minimum[0], *whole_windows, minimum[3])
    found = enumerate_tiles(shape, label, minimum, step, machine)
    if len(found):
        return found
    layout = layout_of(shape)
    return _no_tile_fits(
        op,
        machine,
        0,
        stored_elems(
            [m if cuts_dim(label, dim) else n for dim, m, n in zip(layout, minimum, shape, strict=True)],
            machine,
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
    machine: Unit,
    input_tiles: Ints,
    area: Ints,
    weight_shape: Shape,
    labels: dict[str, str],
    fixed_slack: tuple[int | None, int | None, int | None],
    independent: bool,
) -> _Choice | Infeasible:
    """The first of the combinations of tiles that fill the scratchpads most, as in SMAUG's SMV backend.

    input_tiles: [I, dimensions] candidates. area: [I] output elements per output channel. independent:
    whether the output tile's channels are chosen independently of the weight tile's kernels. fixed_slack:
    elements of padding of the innermost dimension of inputs, weights and outputs, if that of the full tensor
    is taken; None: what the tile's extent needs.
    """
    all_kernels, taps, all_channels = weight_shape[0], prod(weight_shape[1:-1]), weight_shape[-1]
    kernels = (
        multiples(machine.pes, all_kernels, machine.pes)
        if labels["weights"] != "None"
        else np.array([all_kernels])
    )
    cuts_channels = cuts_dim(labels["weights"], "C") and not cuts_dim(labels["inputs"], "C")
    kernels, channels = (
        g.ravel()
        for g in np.meshgrid(
            kernels,
            multiples(machine.macs, all_channels, machine.macs) if cuts_channels else np.array([0]),
            indexing="ij",
        )
    )
    weight_tiles = np.stack(
        np.broadcast_arrays(kernels * taps, channels if cuts_channels else input_tiles[:, -1:]), axis=-1
    )
    weight_elems = stored_elems_each(weight_tiles.reshape(-1, 2), machine, fixed_slack[1]).reshape(
        weight_tiles.shape[:-1]
    ) * np.ones((len(input_tiles), 1), np.int64)
    output_channels = (
        multiples(machine.pes, all_kernels, machine.pes)
        if independent and labels["outputs"] != "None"
        else np.array([all_kernels])
        if independent
        else kernels
    )
    output_tiles = np.stack(np.broadcast_arrays(area[:, None], output_channels), axis=-1)
    output_elems = stored_elems_each(output_tiles.reshape(-1, 2), machine, fixed_slack[2]).reshape(
        output_tiles.shape[:-1]
    )
    # [I, J weight tiles, K output tiles]; K is 1 if the weight tile fixes the output tile
    weight_elems_each, output_elems_each = (
        (weight_elems[:, :, None], output_elems[:, None, :])
        if independent
        else (weight_elems[:, :, None], output_elems[:, :, None])
    )
    score = (
        stored_elems_each(input_tiles, machine, fixed_slack[0])[:, None, None]
        + weight_elems_each
        + output_elems_each
    )
    fits = (weight_elems_each <= machine.max_elems()) & (output_elems_each <= machine.max_elems())
    if not fits.any():
        return (
            _no_tile_fits(op, machine, 1, int(weight_elems.min()))
            if weight_elems.min() > machine.max_elems()
            else _no_tile_fits(op, machine, 2, int(output_elems.min()))
        )
    i, j, k = (int(at) for at in np.unravel_index(int(np.where(fits, score, -1).argmax()), score.shape))
    input_tile = tuple(int(n) for n in input_tiles[i])
    return _Choice(
        input_tile,
        int(kernels[j]),
        int(channels[j]) if cuts_channels else input_tile[-1],
        int(output_channels[k if independent else j]),
    )


def _cut_outputs(labels: dict[str, str]) -> bool:
    """Sets how the outputs of a convolution are cut: by channels where weights are, by rows where inputs are.
    Returns whether rows are cut.
    """
    if labels["weights"] != "None":
        labels["outputs"] = "DimNC"
    cuts_rows = cuts_dim(labels["inputs"], "H")
    if cuts_rows:
        labels["outputs"] = "DimNCH" if cuts_dim(labels["outputs"], "C") else "DimNH"
    return cuts_rows


def convolution(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] with kernels [m, kh, kw, c]. Corrected: every image is a tile of its own; SMAUG computes
    the output of one image only.
    """
    (n, h, w, c), m, (rows, columns) = op.shape, op.outputs, op.windows()
    image, output_height, output_width = (n if faithful else 1, h, w, c), rows.outputs(h), columns.outputs(w)
    weights, image_outputs = (m, *op.kernel, c), (1, output_height, output_width, m)
    labels = _labels(op, machine, {"inputs": image, "weights": weights, "outputs": image_outputs})
    if isinstance(labels, Infeasible):
        return labels
    cuts_rows = _cut_outputs(labels)
    input_tiles = _inputs(op, machine, image, labels["inputs"], (1, rows.step, 1, machine.macs))
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    area = (
        input_tiles[:, 0]
        * (_output_extents(input_tiles[:, 1], h, rows, faithful) if cuts_rows else output_height)
        * output_width
    )
    fixed_slack = (None, machine.slack(c), machine.slack(m)) if faithful else (None, None, None)
    best = _choose(
        op,
        machine,
        input_tiles,
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
    output_cuts = cut_outputs(cuts, rows) if cuts_rows else _uncut(output_height)
    if cuts_rows and not faithful:  # a last tile without a window is not made
        cuts = cuts[: len(output_cuts)]
    image_count = 1 if faithful else n
    output_tile = (
        best.input_tile[0],
        int(_output_extents(np.array([best.input_tile[1]]), h, rows, faithful)[0])
        if cuts_rows
        else output_height,
        output_width,
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
            (image_count, output_height, output_width, m),
            labels["outputs"],
            output_tile,
            (cut(image_count, output_tile[0]), output_cuts, _uncut(output_width), cut(m, best.outputs)),
        ),
    }
    return Tiling(op, tensors, _product_nest(tensors, "n h 0 c", "m 0 0 c", "n h 0 m+o"))


def transposed(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] spread by kernels [m, kh, kw, c] over outputs `stride` apart, cropped by `pads`; SMAUG has
    no such operator. Cut as a convolution, with the halo on the other side: rows of inputs are cut plainly,
    and neighbouring output tiles share the rows to which both add (what a kernel spans less the stride).
    """
    (n, h, w, c), m, spans = op.shape, op.outputs, op.spans()
    (top, bottom, left, right), steps = op.pads, op.stride
    height, width = (reach(size, span, step) for size, span, step in zip((h, w), spans, steps, strict=True))
    full = (n, height - top - bottom, width - left - right, m)
    weights = (m, *op.kernel, c)
    labels = _labels(op, machine, {"inputs": (1, h, w, c), "weights": weights, "outputs": (1, *full[1:])})
    if isinstance(labels, Infeasible):
        return labels
    cuts_rows = _cut_outputs(labels)
    input_tiles = _inputs(op, machine, (1, h, w, c), labels["inputs"], (1, 1, 1, machine.macs))
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    rows = np.minimum((input_tiles[:, 1] - 1) * steps[0] + spans[0], full[1])
    independent = not cuts_rows and labels["weights"] == "None"
    best = _choose(op, machine, input_tiles, rows * full[2], weights, labels, (None, None, None), independent)
    if isinstance(best, Infeasible):
        return best
    if n > 1 and labels["inputs"] == "None":
        labels["inputs"] = "DimN"
    row_cuts, output_cuts = cut(h, best.input_tile[1]), list[Cut]()
    for origin, extent in row_cuts:
        first = origin * steps[0] - top
        last = min(first + reach(extent, spans[0], steps[0]), full[1])
        output_cuts.append((max(first, 0), last - max(first, 0)))
    tensors = {
        "inputs": Tiled(
            op.shape,
            labels["inputs"],
            best.input_tile,
            (cut(n, 1), row_cuts, _uncut(w), cut(c, best.input_tile[3])),
        ),
        "weights": _plain(weights, labels["weights"], (best.kernels, *op.kernel, best.channels)),
        "outputs": Tiled(
            full,
            labels["outputs"],
            (1, max(extent for _, extent in output_cuts), full[2], best.outputs),
            (cut(n, 1), tuple(output_cuts), _uncut(full[2]), cut(m, best.outputs)),
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


def inner_product(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, activations] with weights [neurons, activations]. faithful: results go back only after the very
    last call, as in SMAUG.
    """
    (n, a), q = op.shape, op.outputs
    shapes: dict[str, Shape] = {"inputs": (n, a), "weights": (q, a), "outputs": (n, q)}
    labels = _labels(op, machine, shapes)
    if isinstance(labels, Infeasible):
        return labels
    if labels["weights"] != "None" and labels["outputs"] != "None":
        labels["outputs"] = "DimNC"
    input_tiles = _inputs(op, machine, (n, a), labels["inputs"], (1, machine.macs))
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    fixed_slack = (
        (None, None if labels["weights"] == "DimN" else machine.slack(a), machine.slack(q))
        if faithful
        else (None, None, None)
    )
    independent = labels["weights"] == "None" or labels["outputs"] == "None"
    best = _choose(op, machine, input_tiles, input_tiles[:, 0], (q, a), labels, fixed_slack, independent)
    if isinstance(best, Infeasible):
        return best
    tiles = {
        "inputs": best.input_tile,
        "weights": (best.kernels, best.channels),
        "outputs": (best.input_tile[0], best.outputs),
    }
    tensors = {name: _plain(shapes[name], labels[name], tiles[name]) for name in shapes}
    return Tiling(op, tensors, _product_nest(tensors, "n c", "m c", "n m+o", always=True, last_only=faithful))


def pooling(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] under a window. Corrected: the output is cut in every dimension in which the input is, and
    a last tile too small for a window is left out.
    """
    if faithful and any(op.pads):
        return unsupported(op.name, "pooling with padding (faithful mode)")
    (n, h, w, c), (rows, columns) = op.shape, op.windows()
    full = (n, rows.outputs(h), columns.outputs(w), c)
    labels = _labels(op, machine, {"inputs": op.shape, "outputs": full})
    if isinstance(labels, Infeasible):
        return labels
    labels["outputs"] = _pooled_label(labels["inputs"], labels["outputs"], faithful)
    cuts_rows, cuts_columns, cuts_channels = (cuts_dim(labels["outputs"], dim) for dim in "HWC")
    input_tiles = _inputs(
        op, machine, op.shape, labels["inputs"], (1, rows.step, columns.step, machine.vector)
    )
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    output_tiles = np.broadcast_to(np.array(full), input_tiles.shape).copy()
    output_tiles[:, 0] = input_tiles[:, 0]
    output_tiles[:, 1] = _output_extents(input_tiles[:, 1], h, rows, faithful) if cuts_rows else full[1]
    output_tiles[:, 2] = _output_extents(input_tiles[:, 2], w, columns, faithful) if cuts_columns else full[2]
    output_tiles[:, 3] = input_tiles[:, 3] if cuts_channels and cuts_dim(labels["inputs"], "C") else c
    output_elems = stored_elems_each(output_tiles, machine, machine.slack(c) if faithful else None)
    fits = output_elems <= machine.max_elems()
    if not fits.any():
        return _no_tile_fits(op, machine, 2, int(output_elems.min()))
    best = int(np.where(fits, stored_elems_each(input_tiles, machine) + output_elems, -1).argmax())
    input_tile, output_tile = (tuple(int(i) for i in shapes[best]) for shapes in (input_tiles, output_tiles))
    row_cuts = cut_windows(h, input_tile[1], rows, not faithful)
    column_cuts = cut_windows(w, input_tile[2], columns, not faithful)
    output = _plain(full, labels["outputs"], output_tile)
    if not faithful:
        output = Tiled(
            full,
            output.label,
            output_tile,
            (output.cuts[0], cut_outputs(row_cuts, rows), cut_outputs(column_cuts, columns), output.cuts[3]),
        )
        row_cuts, column_cuts = row_cuts[: len(output.cuts[1])], column_cuts[: len(output.cuts[2])]
    tensors = {
        "inputs": Tiled(
            op.shape,
            labels["inputs"],
            input_tile,
            (cut(n, input_tile[0]), row_cuts, column_cuts, cut(c, input_tile[3])),
        ),
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


def batch_norm(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] or [n, activations]; weights: mean, variance, gamma, beta, stacked."""
    weights = (4, op.shape[-1])
    kind = "batch_norm" if len(op.shape) == 4 else "batch_norm_2d"
    inputs, stacked = (
        _labels(op, machine, {"inputs": op.shape}, kind),
        _labels(op, machine, {"weights": weights}),
    )
    for found in (inputs, stacked):
        if isinstance(found, Infeasible):
            return found
    assert isinstance(inputs, dict)
    assert isinstance(stacked, dict)
    label, stacked_label = inputs["inputs"], stacked["weights"]
    if kind == "batch_norm" and stacked_label != "None":
        return _no_tile_fits(op, machine, 1, stored_elems(weights, machine))
    input_tiles = _inputs(op, machine, op.shape, label, (1, *[machine.vector] * (len(op.shape) - 1)), kind)
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    weight_tiles = np.stack([np.full(len(input_tiles), 4), np.full(len(input_tiles), op.shape[-1])], axis=1)
    if stacked_label != "None" and cuts_dim(label, "C"):
        weight_tiles[:, 1] = input_tiles[:, 1]
    elif stacked_label != "None":
        parts = multiples(machine.vector, op.shape[-1], machine.vector)
        input_tiles, weight_tiles = (
            np.repeat(input_tiles, len(parts), axis=0),
            np.stack([np.full(len(input_tiles) * len(parts), 4), np.tile(parts, len(input_tiles))], axis=1),
        )
    weight_elems = stored_elems_each(weight_tiles, machine, machine.slack(op.shape[-1]) if faithful else None)
    fits = weight_elems <= machine.max_elems()
    if faithful and stacked_label != "None" and cuts_dim(label, "C"):
        # upstream stops at the first that does not fit, so larger batch tiles are never seen
        fits = np.logical_and.accumulate(fits)
    if not fits.any():
        return _no_tile_fits(op, machine, 1, int(weight_elems.min()))
    best = int(np.where(fits, 2 * stored_elems_each(input_tiles, machine) + weight_elems, -1).argmax())
    input_tile = tuple(int(i) for i in input_tiles[best])
    tensors = {
        "inputs": _plain(op.shape, label, input_tile),
        "weights": _plain(weights, stacked_label, (4, int(weight_tiles[best, 1]))),
        "outputs": _plain(op.shape, label, input_tile),
    }
    names, grid = "nhwc" if len(input_tile) == 4 else "nc", tensors["inputs"].grid()
    loops = dict(zip(names, grid, strict=True)) | {"c": max(grid[-1], tensors["weights"].grid()[-1])}
    words = " ".join(names)
    return Tiling(
        op,
        tensors,
        nest(
            loops,
            tensors,
            {"inputs": words, "weights": "0 c", "outputs": words},
            "" if len(input_tile) == 4 else "c",
        ),
    )


def elementwise(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """Any shape, one operand or more: the stored elements of all tensors are cut alike, into runs of
    consecutive ones, and visited together.
    """
    total = stored_elems(op.shape, machine)
    names = ["inputs", *(f"inputs_{i}" for i in range(2, op.operands + 1)), "outputs"]
    tensors = {
        name: _plain(
            (1, total),
            "None" if total <= machine.max_elems() else "flat",
            (1, min(machine.max_elems(), total)),
        )
        for name in names
    }
    return Tiling(op, tensors, nest({"t": tensors["inputs"].grid()[1]}, tensors, dict.fromkeys(names, "0 t")))


def row_wise(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, activations]: a row is never cut. Further operands (`Operator.others`), which SMAUG has not, share
    the scratchpad of the weights.
    """
    n = op.shape[0]
    row = stored_elems((1, *op.shape[1:]), machine)
    others = [(shape[0] > 1 or n == 1, stored_elems((1, *shape[1:]), machine)) for shape in op.others]
    per_row, fixed = (
        sum(elems for has_rows, elems in others if has_rows is wanted) for wanted in (True, False)
    )
    if row > machine.max_elems() or per_row + fixed > machine.max_elems():
        return _no_tile_fits(op, machine, *((0, row) if row > machine.max_elems() else (1, per_row + fixed)))
    rows = min(n, machine.max_elems() // row, (machine.max_elems() - fixed) // per_row if per_row else n)
    label = "None" if rows == n else "DimN"
    shapes = {"inputs": op.shape}
    shapes |= {f"inputs_{i}": shape for i, shape in enumerate(op.others, 2)}
    shapes["outputs"] = op.shape
    tensors = {
        name: _plain(shape, label if shape[0] > 1 else "None", (min(rows, shape[0]), shape[1]))
        for name, shape in shapes.items()
    }
    return Tiling(
        op, tensors, nest({"n": tensors["inputs"].grid()[0]}, tensors, dict.fromkeys(tensors, "n 0"))
    )


def depthwise(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[n, h, w, c] with one kernel [1, kh, kw, c] per channel; SMAUG has no such operator. All tensors are
    cut alike in channels and rows.
    """
    (n, h, w, c), (rows, columns) = op.shape, op.windows()
    image, output_height, output_width = (1, h, w, c), rows.outputs(h), columns.outputs(w)
    labels = _labels(op, machine, {"inputs": image})
    if isinstance(labels, Infeasible):
        return labels
    label = labels["inputs"]
    input_tiles = _inputs(op, machine, image, label, (1, rows.step, 1, machine.vector))
    if isinstance(input_tiles, Infeasible):
        return input_tiles
    output_rows = _output_extents(input_tiles[:, 1], h, rows, faithful=False)
    weight_elems, output_elems = (
        stored_elems_each(np.stack([size, input_tiles[:, 3]], axis=1), machine)
        for size in (np.full(len(input_tiles), prod(op.kernel)), output_rows * output_width)
    )
    fits = (weight_elems <= machine.max_elems()) & (output_elems <= machine.max_elems())
    if not fits.any():
        return (
            _no_tile_fits(op, machine, 1, int(weight_elems.min()))
            if weight_elems.min() > machine.max_elems()
            else _no_tile_fits(op, machine, 2, int(output_elems.min()))
        )
    best = int(
        np.where(fits, stored_elems_each(input_tiles, machine) + weight_elems + output_elems, -1).argmax()
    )
    input_tile = tuple(int(i) for i in input_tiles[best])
    cuts = cut_windows(h, int(input_tiles[best, 1]), rows)
    output_cuts = cut_outputs(cuts, rows)
    cuts = cuts[: len(output_cuts)]
    label = "DimN" if n > 1 and label == "None" else label
    tensors = {
        "inputs": Tiled(op.shape, label, input_tile, (cut(n, 1), cuts, _uncut(w), cut(c, input_tile[3]))),
        "weights": _plain(
            (1, *op.kernel, c), "DimNC" if input_tile[3] < c else "None", (1, *op.kernel, input_tile[3])
        ),
        "outputs": Tiled(
            (n, output_height, output_width, c),
            label,
            (1, int(output_rows[best]), output_width, input_tile[3]),
            (cut(n, 1), output_cuts, _uncut(output_width), cut(c, input_tile[3])),
        ),
    }
    loops = dict(
        zip("nhc", (n, len(tensors["outputs"].cuts[1]), len(tensors["inputs"].cuts[3])), strict=True)
    )
    return Tiling(
        op, tensors, nest(loops, tensors, {"inputs": "n h 0 c", "weights": "0 0 0 c", "outputs": "n h 0 c"})
    )


def attention(op: Operator, machine: Unit, faithful: bool) -> Tiling | Infeasible:
    """[heads, queries, depth] over a context of op.outputs positions, in one pass; SMAUG has no such
    operator.

    Keys and values share the scratchpad of the weights. The one of the output also holds the scores of a tile
    and the running maximum and sum of each query.
    """
    (heads, queries, d), context = op.shape, op.outputs
    steps = (
        minimum_tile(machine, "attention.queries", op.shape)[1],
        minimum_tile(machine, "attention.keys", (heads, context, d))[1],
    )
    rows, keys = (
        g.ravel()
        for g in np.meshgrid(
            multiples(steps[0], queries, steps[0]), multiples(steps[1], context, steps[1]), indexing="ij"
        )
    )
    row_elems = stored_elems((1, d), machine)
    sizes = np.stack(
        [
            rows * row_elems,
            2 * keys * row_elems,
            rows * (row_elems + 2) + stored_elems_each(np.stack([rows, keys], axis=1), machine),
        ]
    )
    fits = (sizes <= machine.max_elems()).all(axis=0)
    if not fits.any():
        holder = int((sizes.min(axis=1) > machine.max_elems()).argmax())
        return _no_tile_fits(op, machine, holder, int(sizes[holder].min()))
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
    "softmax": row_wise,
    "rows": row_wise,
    "transposed": transposed,
    "depthwise": depthwise,
    "attention": attention,
}
