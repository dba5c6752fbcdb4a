"""Keys, values, columns and words of mappings as earlier versions wrote them, and what they are called now.

The one place where old names stand: readers of files and of SQL say the new name in their refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# last part of a key: those that took its place, told apart by where it stands
KEYS: dict[str, tuple[str, ...]] = {
    "reuse": ("schedule",),
    "tiles": ("factors",),
    "near": ("gap",),
    "share": ("sharing_gap", "error_fraction"),
    "steady_cycles": ("initiation_interval",),
    "points": ("machines",),
    "holds": ("may_keep",),
    "ramp": ("systolic",),
    "rim": ("injected_at",),
    "source": ("multicast_from",),
    "lane_pj": ("endpoint_pj",),
}
VALUES: dict[str, dict[str, str]] = {
    "solver.schedule": {
        "none": "unfused",
        "tiles": "fused",
        "pipelines": "pipelined",
        "optimal": "residency",
    },
    "solver.factors": {"ragged_lanes": "imperfect_spatial", "ragged": "imperfect"},
}
COLUMNS: dict[str, str] = {
    "gap_in_space": "optimality_gap",
    "bound_by": "bottleneck",
    "steady_cycles": "initiation_interval_cycles",
    "beaten_by": "dominated_by",
    "lane_pj": "endpoint_pj",
    "small_words": "in_registers_words",
    "apart_words": "not_fused_words",
    "again_words": "reread_words",
    "room_words": "capacity_words",
    "count": "occurrences",
    "runs": "occurrences",
    "place": "position",
    "granules": "pipeline_tiles",
    "kept": "retained",
    "held": "peak_bytes",
    "saved": "saved_share (schedules) or saved_cost (conversions)",
    "alike": "tied_designs",
}


ENTRIES: dict[str, str] = {"spatial": "parfor"}  # of mappings in YAML
LINES: tuple[tuple[str, str], ...] = (  # of mappings and schedules
    (r"for (\w+) in tiles of (\d+)", r"for \1 tile \2"),
    (r"spatial (\w+) over (\w+) in tiles of (\d+)", r"parfor \1 tile \3 over \2"),
    (r"keep (\w+) (\S+) (\d.*)", r"retain \1 \2 \3"),
)


def line_now(line: str) -> str:
    """A line of a mapping or schedule as it is written now; empty: it has had no other form."""
    line = " ".join(line.split())
    return next((re.sub(old, new, line) for old, new in LINES if re.fullmatch(old, line)), "")


def key_now(key: str, known: Iterable[str]) -> str:
    """The name that took the place of a key, dots and all; empty: it has had no other. known: keys that would
    be right there.
    """
    where, _, last = key.rpartition(".")
    valid = set(known)
    found = next((name for name in KEYS.get(last, ()) if name in valid), "")
    return f"{where}.{found}".lstrip(".") if found else ""


def value_now(key: str, value: object) -> str:
    """The name that took the place of a value of a key; empty: it has had no other."""
    return VALUES.get(key, {}).get(str(value), "")
