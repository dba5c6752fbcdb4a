"""Keys, values, columns and words of mappings as earlier versions wrote them, with their new names.

Old names occur only here. Readers of files and of SQL refuse them and state the new name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# last part of an old key -> new names; which one is meant depends on the keys that are valid there
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
# key -> its old value -> the new one
VALUES: dict[str, dict[str, str]] = {
    "solver.schedule": {
        "none": "unfused",
        "tiles": "fused",
        "pipelines": "pipelined",
        "optimal": "residency",
    },
    "solver.factors": {"ragged_lanes": "imperfect_spatial", "ragged": "imperfect"},
}
# old column -> new name; several, if it depends on the table
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


ENTRIES: dict[str, str] = {"spatial": "parfor"}  # old key of mappings in YAML -> the new one
LINES: tuple[tuple[str, str], ...] = (  # old and new lines of mappings and schedules
    (r"for (\w+) in tiles of (\d+)", r"for \1 tile \2"),
    (r"spatial (\w+) over (\w+) in tiles of (\d+)", r"parfor \1 tile \3 over \2"),
    (r"keep (\w+) (\S+) (\d.*)", r"retain \1 \2 \3"),
)


def line_now(line: str) -> str:
    """Returns the new form of a line of a mapping or schedule; "" if it has no old form."""
    line = " ".join(line.split())
    return next((re.sub(old, new, line) for old, new in LINES if re.fullmatch(old, line)), "")


def key_now(key: str, known: Iterable[str]) -> str:
    """Returns the new name of a key, including its prefix; "" if it is no old key. known: keys that are valid
    there.
    """
    where, _, last = key.rpartition(".")
    valid = set(known)
    found = next((name for name in KEYS.get(last, ()) if name in valid), "")
    return f"{where}.{found}".lstrip(".") if found else ""


def value_now(key: str, value: object) -> str:
    """Returns the new name of a value of a key; "" if it is no old value."""
    return VALUES.get(key, {}).get(str(value), "")
