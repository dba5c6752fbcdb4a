"""Smallest useful tiles for machines that name none, and faults in those that a machine file names.

Source: SMAUG's SMV backend (Xi et al. 2020). Dimensions of activations: [batch, rows, columns, channels], or
[batch, activations]; of weights: [kernels, rows, columns, channels]. `full`, and the 4 of batch_norm.weights:
the optimizer never cuts this dimension.
"""

from __future__ import annotations

from collections.abc import Mapping

from hw.arch import TileEntry, Tiling
from hw.component import closest_name

Tile = tuple[TileEntry, ...]
MINIMUM: Mapping[str, Tile] = {
    "convolution.inputs": (1, "kernel", "full", "macs"),
    "convolution.weights": ("pes", "full", "full", "macs"),
    "convolution.outputs": (1, 1, "full", "pes"),
    "depthwise.inputs": (1, "kernel", "full", "vector"),
    "transposed.inputs": (1, 1, "full", "macs"),
    "transposed.weights": ("pes", "full", "full", "macs"),
    "transposed.outputs": (1, 1, "full", "pes"),
    "inner_product.inputs": (1, "macs"),
    "inner_product.weights": ("pes", "macs"),
    "inner_product.outputs": (1, "pes"),
    "pooling.inputs": (1, "kernel", "kernel", "vector"),
    "pooling.outputs": (1, 1, 1, "vector"),
    "batch_norm.inputs": (1, "vector", "vector", "vector"),
    "batch_norm_2d.inputs": (1, "vector"),
    "batch_norm.weights": (4, "vector"),
    "attention.queries": (1, "pes", "full"),
    "attention.keys": (1, "macs", "full"),
}


def faults(t: Tiling) -> list[str]:
    """Returns the faults of a tiling block, one line each: a preference that does not begin with None, or a
    minimum tile that an optimizer cannot keep to.
    """
    lines = [_fault(key, tile) for key, tile in t.minimum.items()]
    if t.preference[0] != "None":
        lines.append(
            f"tiling.preference = [{', '.join(t.preference)}] must begin with None: what fits is not "
            "cut; put None first"
        )
    return [line for line in lines if line]


def _fault(key: str, tile: Tile) -> str:
    if key not in MINIMUM:
        return f"tiling.minimum.{key} is no tensor of an optimizer; {closest_name(key, MINIMUM)}"
    default = MINIMUM[key]
    start = f"tiling.minimum.{key} = [{', '.join(map(str, tile))}]"
    if len(tile) != len(default):
        return (
            f"{start} has {len(tile)} entries for {len(default)} dimensions; write e.g. "
            f"[{', '.join(map(str, default))}]"
        )
    for i, (entry, given) in enumerate(zip(default, tile, strict=True)):
        if entry in ("full", 4) and given != entry:
            return f"{start}: dimension {i} is never cut; write {entry} there"
        if entry != "kernel" and given == "kernel":
            return f"{start}: dimension {i} has no kernel; write a number, pes, macs, vector or full"
    return ""
