"""Random operators and accelerators for the tiling tests: every kind, ragged sizes, odd units, several
accelerators.
"""

from __future__ import annotations

import random
from dataclasses import replace

from dse.mapper.smaug.factor import Unit
from dse.mapper.smaug.smaug import Operator, same_padding
from hw.arch import TileEntry, Tiling
from hw.tiling import MINIMUM

CHANNELS = (1, 3, 8, 12, 16, 20, 32, 33, 48, 64, 70, 96, 128)
KINDS = (
    "convolution",
    "inner_product",
    "pooling",
    "batch_norm",
    "unary",
    "elementwise",
    "softmax",
    "depthwise",
    "attention",
    "rows",
    "transposed",
)


def unit(rng: random.Random) -> Unit:
    """An accelerator; a third of them prefer other cuts and have other smallest tiles than the usual ones."""
    found = Unit(
        tile_bytes=rng.choice((1024, 2048, 4096, 8192, 32768)),
        elem_bytes=rng.choice((1, 2, 2, 4)),
        align=rng.choice((0, 4, 8, 8, 16)),
        pes=rng.choice((2, 4, 8, 8, 16)),
        macs=rng.choice((4, 8, 16, 32, 32)),
        vector=rng.choice((4, 8, 8, 16)),
        accelerators=rng.choice((1, 1, 1, 2, 3)),
    )
    if rng.random() < 2 / 3:
        return found
    first, *labels = Tiling().preference
    minimum = {key: tuple(_entry(rng, entry) for entry in usual) for key, usual in MINIMUM.items()}
    return replace(
        found, preference=(first, *rng.sample(labels, rng.randint(3, len(labels)))), minimum=minimum
    )


def _entry(rng: random.Random, usual: TileEntry) -> TileEntry:
    return (
        usual
        if usual in ("full", 4) or rng.random() < 0.5
        else rng.choice((1, 2, 3, 8, 16, "pes", "macs", "vector"))
    )


def operator(rng: random.Random, kind: str = "", padded_pools: bool = True) -> Operator:
    kind = kind or rng.choice(KINDS)
    n = rng.choice((1, 1, 1, 2, 3))
    if kind in ("inner_product", "softmax") or (kind == "batch_norm" and rng.random() < 0.5):
        return Operator(
            kind, kind, (rng.choice((1, 1, 2, 5, 40)), rng.randint(1, 700)), outputs=rng.randint(1, 500)
        )
    if kind == "rows":
        n, a = rng.choice((1, 2, 5, 40)), rng.randint(1, 700)
        others = tuple(rng.choice(((n, a), (n, 1), (1, a), (1, 1))) for _ in range(rng.randint(1, 3)))
        return Operator(kind, kind, (n, a), others=others)
    if kind == "transposed":
        kernel = (rng.randint(1, 4), rng.randint(1, 4))
        stride = (rng.randint(1, min(3, kernel[0])), rng.randint(1, min(3, kernel[1])))
        h, w = rng.randint(2, 12), rng.randint(2, 9)
        crop = [
            rng.randint(0, min(k - 1, ((size - 1) * step + k - 1) // 2))
            for k, size, step in zip(kernel, (h, w), stride, strict=True)
            for _ in range(2)
        ]
        return Operator(
            kind,
            kind,
            (rng.choice((1, 1, 2)), h, w, rng.choice(CHANNELS)),
            kernel,
            rng.choice(CHANNELS),
            stride,
            (crop[0], crop[1], crop[2], crop[3]),
        )
    if kind == "attention":
        return Operator(
            kind, kind, (n, rng.randint(1, 70), rng.choice((1, 4, 16, 20, 32))), outputs=rng.randint(1, 200)
        )
    kernel = rng.choice((1, 2, 3, 3, 4, 5, 7)), rng.choice((1, 2, 3, 3, 4, 5, 7))
    dilation = rng.choice(((1, 1), (1, 1), (2, 1), (1, 2), (3, 2)))
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    h, w = rng.randint(spans[0], max(40, spans[0])), rng.randint(spans[1], max(30, spans[1]))
    stride = (rng.randint(1, 4), rng.randint(1, 4))
    odd = tuple(rng.randint(0, k - 1) for k in (kernel[0], kernel[0], kernel[1], kernel[1]))
    pads = (
        rng.choice((same_padding(kernel), (0, 0, 0, 0), odd))
        if kind != "pooling" or padded_pools
        else (0, 0, 0, 0)
    )
    if kind in ("batch_norm", "unary", "elementwise"):
        kernel, stride, pads, dilation = (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)
    return Operator(
        kind,
        kind,
        (n, h, w, rng.choice(CHANNELS)),
        kernel,
        rng.choice(CHANNELS) if kind == "convolution" else 0,
        stride,
        (pads[0], pads[1], pads[2], pads[3]),
        rng.choice((1, 2, 3)) if kind == "elementwise" else 1,
        dilation,
    )
