"""Random layers as einsums, for schedules read, exported and replayed."""

from __future__ import annotations

import random

from workloads import cnn, hpc
from workloads.einsum import Einsum, squeezed


def layer(rng: random.Random) -> Einsum:
    """A convolution (dense, grouped, strided, padded), product of matrices, pooling, normalisation or
    element-wise operator.
    """
    k, c, p, q = rng.randint(1, 90), rng.randint(1, 90), rng.randint(1, 40), rng.randint(1, 30)
    r, s, stride, n = (
        rng.choice((1, 2, 3, 5)),
        rng.choice((1, 2, 3, 5)),
        rng.randint(1, 3),
        rng.choice((1, 1, 2)),
    )
    pad = rng.randint(0, min((r - 1) // 2, (s - 1) // 2)) if rng.random() < 0.4 else 0
    groups = rng.choice((1, 1, 2, 3))
    match rng.randint(0, 7):
        case 0 | 1 | 2:
            found = cnn.conv(
                k * groups, c * groups, p + 2 * pad, q + 2 * pad, r, s, stride, groups=groups, n=n, pad=pad
            )
        case 3:
            found = cnn.depthwise(c, p + 2 * pad, q + 2 * pad, r, s, stride, n=n, pad=pad)
        case 4:
            found = cnn.pool(
                c, p + 2 * pad, q + 2 * pad, r, s, rng.choice(("max", "average")), stride, n, pad
            )
        case 5:
            found = hpc.gemm(rng.choice((1, 1, 7, 60)), 8 * k, 8 * c)
        case 6:
            found = cnn.batchnorm(8 * c, p, q, n)
        case _:
            found = cnn.unary(k * c * p)
    return squeezed(found[0])
