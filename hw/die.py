"""What a die costs: the price of its wafer (hw/data/wafer.csv, of 2020) over the good dies on it.

    dies on a wafer = pi * r^2 / A - pi * 2 r / sqrt(2 A)
    yield           = (1 + defects * area / CLUSTERING)^-CLUSTERING
    cost            = price of a wafer / (dies * yield)

r: of the wafer, less its edge; A: the die with its scribe lanes, taken as a square.
Source of formula and constants: Feng and Ma, Chiplet Actuary, DAC 2022 (negative binomial yield). Left out:
package, test, masks and design (NRE), pads and what else is on a chip but the machine, DRAM, and that arrays
may be repaired.
"""

from __future__ import annotations

import math
from functools import lru_cache

from hw.component import blend, bracket, rows

WAFER_MM, EDGE_MM, SCRIBE_MM = 300.0, 5.0, 0.2
CLUSTERING = 10.0  # alpha of the negative binomial distribution of defects


@lru_cache
def _wafers() -> dict[float, tuple[float, float]]:
    """Returns (USD per wafer, defects per cm2) by node."""
    return {
        float(row["node_nm"]): (float(row["wafer_usd"]), float(row["defects_per_cm2"]))
        for row in rows("wafer")
    }


def cost_usd(area_mm2: float, node_nm: float) -> float:
    """Returns the USD of a good die; NaN for no area, and for a node outside of the table; inf for a die that
    no wafer has.
    >>> round(cost_usd(100, 28), 2), cost_usd(100, 7)
    (5.42, nan)
    """
    wafers = _wafers()
    if not min(wafers) <= node_nm <= max(wafers) or not area_mm2 > 0:
        return math.nan
    below, above, fraction = bracket(node_nm, sorted(wafers))
    wafer_usd, defects_per_cm2 = blend(wafers[below], wafers[above], fraction)
    with_scribe = (math.sqrt(area_mm2) + SCRIBE_MM) ** 2
    radius = WAFER_MM / 2 - EDGE_MM
    dies = math.pi * radius**2 / with_scribe - math.pi * 2 * radius / math.sqrt(2 * with_scribe)
    good = math.pow(1 + defects_per_cm2 / 100 * area_mm2 / CLUSTERING, -CLUSTERING)
    return wafer_usd / (dies * good) if dies > 0 else math.inf
