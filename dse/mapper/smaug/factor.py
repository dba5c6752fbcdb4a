"""Tile sizes: what an accelerator offers (Unit), which dimensions to cut (`strategy`), which tile sizes to
try (`enumerate_tiles`).

Source: SMAUG's SMV backend (Xi et al. 2020). Shapes are in elements, outermost first: [batch, rows, columns,
channels] or [batch, activations]. "Stored" elements include the padding of the innermost dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from hw.arch import ROLES, Arch, Level, TileEntry, Tiling
from hw.tiling import MINIMUM
from workloads.arrays import Ints

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """An accelerator as SMAUG's tiling optimizers see it; the defaults are SMV's."""

    tile_bytes: int = 32768  # the largest tile of inputs, weights or outputs
    elem_bytes: int = 2
    align: int = 8  # the innermost dimension is stored in multiples of this; 0: as it is
    pes: int = 8  # output channels that are computed at once
    macs: int = 32  # input channels that each PE multiplies and adds up per step
    vector: int = 8  # elements that the vector unit takes at once
    accelerators: int = 1  # accelerators that take turns
    names: tuple[str, str, str] = ("ISPAD", "WSPAD", "OSPAD")  # levels of inputs, weights, outputs
    # labels of dimensions that may be cut, in order of preference (hw/arch.py, Tiling)
    preference: tuple[str, ...] = Tiling().preference
    # minimum tiles (hw/arch.py, Tiling)
    minimum: Mapping[str, tuple[TileEntry, ...]] = field(default_factory=lambda: MINIMUM)

    def max_elems(self) -> int:
        """The largest tile, in stored elements."""
        return self.tile_bytes // self.elem_bytes

    def slack(self, innermost: int) -> int:
        """Elements of padding that round the innermost dimension up to a multiple of `align`; 0 without
        alignment.
        """
        return -innermost % self.align if self.align else 0


def unit(arch: Arch, elem_bits: int) -> Unit | None:
    """What a machine offers to SMAUG. None where inputs, weights or outputs have no scratchpad between the
    outermost level and the innermost array, or where their scratchpads have different numbers of instances.

    Each of the three lives in the largest scratchpad that may keep it (`may_keep`). Those that share one get
    equal parts of it:

        DRAM > ISPAD [input], WSPAD [weight], OSPAD [output] > array      as smv: one scratchpad each
        DRAM > GBUF [input, weight, output] > array                      a third of GBUF each
    """
    homes = [_home(arch, role) for role in ROLES]
    scratchpads = [level for level in homes if level]
    instance_counts = {arch.instances(arch.levels.index(level)) for level in scratchpads}
    if len(scratchpads) < len(ROLES) or len(instance_counts) > 1:
        return None
    bits_each = min(
        (level.capacity_bits or 0) // (2 if level.double_buffer else 1) // scratchpads.count(level)
        for level in scratchpads
    )
    t, (pes, macs) = arch.tiling, pe_dims(arch, arch.levels.index(scratchpads[0]))
    return Unit(
        tile_bytes=bits_each // 8,
        elem_bytes=max(elem_bits // 8, 1),
        align=t.align,
        pes=t.pes or prod(n for _, n in pes),
        macs=t.macs or prod(n for _, n in macs),
        vector=t.vector or int(arch.compute.alu_per_cycle or 8),
        accelerators=instance_counts.pop(),
        names=(scratchpads[0].name, scratchpads[1].name, scratchpads[2].name),
        preference=t.preference,
        minimum={**MINIMUM, **t.minimum},
    )


def _home(arch: Arch, role: str) -> Level | None:
    inner = arch.fanouts[-1].outside if arch.fanouts else len(arch.levels)
    found = [level for level in arch.levels[1:inner] if level.capacity_bits and role in level.may_keep]
    return max(found, key=lambda level: level.capacity_bits or 0, default=None)


def pe_dims(arch: Arch, outer: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Splits the fan-out dimensions inside level `outer` in two: dimensions over which output channels are
    unrolled, and dimensions over which input channels are added up.

    A dimension adds up if its fan-out reduces. If several dimensions do and no other exists, the first one
    still gets output channels, since SMAUG needs both kinds.
    """
    dims = [
        (name, size, reduces)
        for f in arch.fanouts
        if f.outside > outer
        for (name, size), reduces in zip(f.dims, f.reduce, strict=True)
    ]
    if len(dims) > 1 and all(reduces for _, _, reduces in dims):
        dims[0] = (*dims[0][:2], False)
    return [(name, n) for name, n, reduces in dims if not reduces], [
        (name, n) for name, n, reduces in dims if reduces
    ]


def stored_elems(shape: Sequence[int], machine: Unit, slack: int | None = None) -> int:
    """Elements that a tensor or a tile takes in a scratchpad: its innermost dimension is padded by `slack`
    (None: up to the next multiple of align).
    """
    return prod(shape[:-1]) * (shape[-1] + (machine.slack(shape[-1]) if slack is None else slack))


def cuts_dim(label: str, dim: str) -> bool:
    """Whether a label may cut a dimension; every label but None may cut N."""
    return label != "None" and dim in label.removeprefix("Dim")


def layout_of(shape: Sequence[int]) -> str:
    """SMAUG's layout of a tensor: NHWC for four dimensions, else NC."""
    return "NHWC" if len(shape) == 4 else "NC"


def minimum_tile(machine: Unit, key: str, shape: Shape, kernel: Sequence[int] = ()) -> Shape:
    """The minimum tile of a table entry, clipped to the shape. A tile of inputs has at least one window."""
    unit_sizes = {"pes": machine.pes, "macs": machine.macs, "vector": machine.vector}

    def size(dim: int, entry: TileEntry) -> int:
        window = kernel[dim - 1] if kernel and 0 < dim < 3 else 1
        if entry == "full":
            return shape[dim]
        n = entry if isinstance(entry, int) else window if entry == "kernel" else unit_sizes[entry]
        return max(n, window) if key.endswith(".inputs") else n

    return tuple(min(size(dim, entry), shape[dim]) for dim, entry in enumerate(machine.minimum[key]))


def minimal_share(shape: Shape, label: str, minimum: Shape, machine: Unit, layout: str) -> tuple[int, int]:
    """(a, b): the smallest tile that a label allows takes a / b stored elements. As a fraction of the padded
    tensor, a / b need not be a whole number.
    """
    total = stored_elems(shape, machine)
    if label == "None":
        return total, 1
    n = layout.index("N")
    numerator, denominator = total // shape[n] * (minimum[n] if label == "DimN" else 1), 1
    for dim in label.removeprefix("DimN"):
        i = layout.index(dim)
        numerator, denominator = numerator * minimum[i], denominator * shape[i]
    return numerator, denominator


def strategy(shape: Shape, minimum: Shape, machine: Unit, layout: str = "") -> str | int:
    """The first label in the machine's order of preference whose smallest tile fits. If none fits: the
    elements of the smallest tile of all labels.
    """
    layout = layout or layout_of(shape)
    need = stored_elems(shape, machine)
    for label in machine.preference:
        if set(label.removeprefix("Dim")) <= set(layout) or label == "None":
            numerator, denominator = minimal_share(shape, label, minimum, machine, layout)
            if numerator <= machine.max_elems() * denominator:
                return label
            need = min(need, -(-numerator // denominator))
    return need


def enumerate_tiles(shape: Shape, label: str, minimum: Shape, step: Shape, machine: Unit) -> Ints:
    """[candidates, dimensions] the tile shapes that fit. A dimension in the label takes the sizes minimum,
    minimum + step, ...; the other dimensions are full.

    The order decides ties: N outermost, then channels, rows, columns, all ascending.
    """
    layout = layout_of(shape)
    order = sorted(range(len(shape)), key=lambda i: "NCHW".index(layout[i]))
    # sizes of each dimension; dropped if they do not fit beside the smallest sizes of the others
    runs = [
        np.arange(minimum[i], shape[i] + 1, step[i]) if cuts_dim(label, layout[i]) else np.array([shape[i]])
        for i in order
    ]
    runs = [run[run * prod(int(r[0]) for r in runs if r is not run) <= machine.max_elems()] for run in runs]
    grid = np.meshgrid(*runs, indexing="ij")
    found = np.empty((grid[0].size, len(shape)), np.int64)
    for column, i in zip(grid, order, strict=True):
        found[:, i] = column.ravel()
    return found[stored_elems_each(found, machine) <= machine.max_elems()]


def stored_elems_each(shapes: Ints, machine: Unit, slack: int | None = None) -> Ints:
    """The result of `stored_elems` for many shapes: [candidates, dimensions] -> [candidates]."""
    inner = shapes[:, -1]
    padding = slack if slack is not None else (-inner % machine.align if machine.align else 0)
    elems: Ints = shapes[:, :-1].prod(axis=1) * (inner + padding)
    return elems


def multiples(first: int, last: int, step: int) -> Ints:
    """first, first + step, ... up to last. If first is above last, only last."""
    return np.arange(min(first, last), last + 1, step)
