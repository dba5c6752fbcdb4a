"""Arithmetic of sliding windows over a cut dimension, for overlapping tiles and for unfold (ALT, Xu et al. 2023)."""

from __future__ import annotations


def windows(extent: int, window: int, step: int) -> int:
    """Whole windows of `window` elements, `step` apart, in `extent` elements; 0 if none fits.

    >>> windows(9, 7, 2), windows(6, 7, 2)
    (2, 0)
    """
    return max((extent - window) // step + 1, 0)


def reach(count: int, window: int, step: int) -> int:
    """Elements from the first to the last of `count` windows: the block B that unfold cuts for them, B = V * (w - 1) + M.

    >>> reach(2, 7, 2)
    9
    """
    return (count - 1) * step + window


def pitch(extent: int, window: int, step: int) -> int:
    """Distance between the starts of blocks of `extent` elements so that no window is lost or done twice: S = V * w.

    >>> pitch(9, 7, 2)
    4
    """
    return step * windows(extent, window, step)
