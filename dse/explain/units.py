"""Numbers for readers: four digits, in a unit that fits the size of the number. Files and JSON keep full
precision, in the units that their names end with (`energy_pj`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite
from numbers import Real
from typing import Any

Steps = tuple[tuple[float, str], ...]
DIGITS = 4
# metadata key of an Arrow field; its value is the column of a view that has the same unit, b"" if there is
# none
COLUMN_KEY = b"column"
NOTE_KEY = b"note"  # metadata key of an Arrow table: a line about rows that an answer lacks
QUANTITY = re.compile(
    r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]+2?)"
)  # a number, its unit
# numbers of a column share one unit if largest / smallest is at most this; of a wider range that in which the
# smallest is not below SMALLEST
MAX_UNIT_RATIO, SMALLEST = 1e6, 1e-3
MAX_BYTES_RATIO = 1e3  # of sizes, where this is the ratio up to which they share one
LEAST_SIZE = 0.25  # of a size in the unit that a column of sizes shares

ENERGY: Steps = ((1e-3, "fJ"), (1.0, "pJ"), (1e3, "nJ"), (1e6, "uJ"), (1e9, "mJ"), (1e12, "J"))
PER_BIT: Steps = ((1.0, "pJ/bit"),)
TIME: Steps = ((1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s"))
POWER: Steps = ((1e-3, "uW"), (1.0, "mW"), (1e3, "W"))
BYTES: Steps = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))
EDP: Steps = (
    (1.0, "pJ ns"),
    (1e3, "nJ ns"),
    (1e6, "nJ us"),
    (1e9, "uJ us"),
    (1e12, "uJ ms"),
    (1e15, "mJ ms"),
    (1e18, "mJ s"),
    (1e21, "J s"),
)
COUNT: Steps = ((1.0, ""), (1e6, "M"), (1e9, "G"), (1e12, "T"))
CYCLES: Steps = ((1.0, "cycles"), (1e6, "Mcycles"), (1e9, "Gcycles"))
RATE: Steps = ((1.0, "/s"),)
AREA: Steps = ((1.0, "mm2"),)
NODE: Steps = ((1.0, "nm"),)
BITS: Steps = ((1.0, "bit"),)
MHZ: Steps = ((1.0, "MHz"), (1e3, "GHz"))
GHZ: Steps = ((1.0, "GHz"),)
TOPS: Steps = ((1e-3, "GOPS"), (1.0, "TOPS"), (1e3, "POPS"))
PER_WATT: Steps = ((1.0, "TOPS/W"),)
INTENSITY: Steps = ((1.0, "MAC/B"),)
SHARE: Steps = ((0.01, "%"),)
VOLTS: Steps = ((1.0, "V"),)

UNITS_BY_SUFFIX: tuple[tuple[str, Steps], ...] = (  # last words of a name -> units; the first match counts
    ("edp_pj_ns", EDP),
    ("pj_per_bit", PER_BIT),
    ("pj", ENERGY),
    ("ns", TIME),
    ("mw", POWER),
    ("mm2", AREA),
    ("nm", NODE),
    ("cycles", CYCLES),
    ("gb_per_s", ((1.0, "GB/s"),)),
    ("bytes_per_cycle", ((1.0, "B/cycle"),)),
    ("bytes", BYTES),
    ("capacity", BYTES),
    ("bits", BITS),
    ("ghz", GHZ),
    ("mhz", MHZ),
    ("throughput", RATE),
    ("vdd", VOLTS),
    ("tops", TOPS),
    ("tops_per_w", PER_WATT),
    ("macs_per_byte", INTENSITY),
    ("elems", COUNT),
    ("elements", COUNT),
    ("macs", COUNT),
    ("computes", COUNT),
    ("actions", COUNT),
    ("weights", COUNT),
    ("inputs", COUNT),
    ("outputs", COUNT),
    ("parameters", COUNT),
    ("activations", COUNT),
)
AGGREGATES = ("_sum", "_max", "_geomean")  # suffixes of objectives over workloads
SHARE_WORDS = {"gap", "share", "utilization"}  # a name with one of these words is a share
# spelling of words of names on screens
SPELLING = {"edp": "EDP", "mac": "MAC", "macs": "MACs", "dram": "DRAM"}
NAMES = {  # names of columns on screens that are other words, since the values carry the unit
    "tops": "performance",
    "peak_tops": "peak performance",
    "tops_per_w": "energy efficiency",
    "macs_per_byte": "operational intensity",
    "bytes_per_cycle": "bandwidth",
    "gb_per_s": "data rate",
}
# words of names that screens leave out, since the values carry the unit
UNIT_WORDS = ("pj", "ns", "mw", "mm2", "nm", "cycles", "bytes", "bits", "ghz", "mhz", "s")


def steps_of(name: str) -> Steps:
    """Returns the units for values of a column, by the last words of its name (as record.py names columns);
    () if they name no unit.
    """
    if SHARE_WORDS & set(name.split("_")):
        return SHARE
    plain = name.replace(".", "_")
    for end in AGGREGATES:
        plain = plain.removesuffix(end)
    return next((steps for end, steps in UNITS_BY_SUFFIX if plain == end or plain.endswith(f"_{end}")), ())


def label(name: str) -> str:
    """Returns the name of a column for screens, where values carry their unit.

    >>> [label(name) for name in ("energy_pj", "initiation_interval_cycles", "edp_pj_ns")]
    ['energy', 'initiation interval', 'EDP']
    >>> [label(name) for name in ("mac_utilization", "bytes", "left_s")]
    ['MAC utilization', 'size', 'left']
    """
    if name in NAMES:
        return NAMES[name]
    words = name.replace(".", "_").split("_")
    bare = (
        [word for word in words if word not in UNIT_WORDS] if steps_of(name) or name.endswith("_s") else words
    )
    return " ".join({**SPELLING, "bytes": "size"}.get(word, word) for word in bare or words)


def number(value: float) -> str:
    """Returns a number with four digits, without an exponent from 0.0001 to ten million. Whole numbers below
    a million are written in full.

    >>> [number(v) for v in (0.0, 12345.6, 0.00123456, 1.285105e+08, 99999.0)]
    ['0', '12350', '0.001235', '1.285e+08', '99999']
    """
    if isfinite(value) and value == round(value) and abs(value) < 1e6:
        return str(round(value))
    short = float(f"{value:.{DIGITS}g}")
    if isfinite(short) and (short == 0 or 1e-4 <= abs(short) < 1e7):
        return f"{short:.10f}".rstrip("0").rstrip(".")
    return f"{value:.{DIGITS}g}"


def counted(count: int, noun: str) -> str:
    """Returns a number of things.

    >>> counted(1, "row"), counted(12000, "machine")
    ('1 row', '12000 machines')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def quantity(name: str, value: float) -> str:
    """Returns a number with the unit that makes it readable.

    >>> [quantity("energy_pj", 1.184966e10), quantity("gbuf_capacity", 32768)]
    ['11.85 mJ', '32 KiB']
    >>> [quantity("latency_ns", 768.0), quantity("runs", 1.5)]
    ['768 ns', '1.5']
    >>> quantity("latency_cycles", 285266.4), quantity("capacity_bits", 1048576)
    ('285266 cycles', '1048576 bit')
    """
    steps = steps_of(name)
    return _with_unit(value, _step(value, steps)) if steps else number(value)


def column(name: str, values: Sequence[Any]) -> list[str] | None:
    """Returns the cells of a column of numbers; None if it has other values. Numbers of similar size share
    one unit.

    >>> column("energy_pj", [1.5e9, 9e8, None])
    ['1.5 mJ', '0.9 mJ', '']
    >>> column("machine", [8, 9])
    ['8', '9']
    >>> column("footprint_bytes", [2, 1048576]), column("footprint_bytes", [512, 2048])
    (['2 B', '1 MiB'], ['0.5 KiB', '2 KiB'])
    """
    numbers = [v for v in values if v is not None and v != ""]
    if not numbers or not all(isinstance(v, Real) and not isinstance(v, bool) for v in numbers):
        return None
    steps = steps_of(name)
    if not steps:
        return [
            "" if v is None or v == "" else str(v) if isinstance(v, int) else number(float(v)) for v in values
        ]
    sizes = [abs(float(v)) for v in numbers if v and isfinite(v)]
    # products of units are hard to compare at a glance: those of a column have one
    max_ratio = MAX_BYTES_RATIO if steps is BYTES else inf if steps is EDP else MAX_UNIT_RATIO
    shared_step = (
        _step(min(max(sizes), min(sizes) / SMALLEST), steps)
        if steps is not COUNT and sizes and max(sizes) <= max_ratio * min(sizes)
        else None
    )
    if steps is BYTES and shared_step and min(sizes) < LEAST_SIZE * shared_step[0]:
        shared_step = None
    return [
        "" if v is None or v == "" else _with_unit(float(v), shared_step or _step(float(v), steps))
        for v in values
    ]


def axis(name: str, values: Sequence[float]) -> tuple[float, str]:
    """Returns the divisor for values of a column on an axis, and the axis label.

    >>> axis("energy_pj", [1.5e9, 9e8]), axis("gbuf_capacity", [65536]), axis("array_x", [8])
    ((1000000000.0, 'energy (mJ)'), (1024.0, 'gbuf capacity (KiB)'), (1.0, 'array x'))
    """
    steps = steps_of(name)
    sizes = [abs(v) for v in values if isfinite(v)]
    divisor, unit = _step(max(sizes, default=0.0), steps) if steps and steps is not SHARE else (1.0, "")
    words = NAMES.get(name, name).replace("_", " ").replace(".", " ").split()
    plain = " ".join(word for word in words if unit == "" or word not in UNIT_WORDS) or name
    return divisor, f"{plain} ({unit})" if unit else plain


def bare(text: str) -> float | None:
    """Returns the number that a column of energies, times, sizes, powers, areas, nodes or clocks holds for a
    text with a unit, as screens show it; None for any other text.

    >>> bare("256 KiB"), bare("1.5mJ"), bare("0.8 GHz"), bare("32 nm"), bare("lpddr4")
    (262144.0, 1500000000.0, 800.0, 32.0, None)
    """
    match = QUANTITY.fullmatch(text.strip())
    factors = {
        unit: factor for steps in (ENERGY, TIME, BYTES, POWER, AREA, NODE, MHZ) for factor, unit in steps
    }
    return float(match[1]) * factors[match[2]] if match and match[2] in factors else None


def duration(seconds: float) -> str:
    """Returns a duration for screens.
    >>> [duration(s) for s in (0.4, 42.3, 200.0, 9000.0)]
    ['0.4 s', '42 s', '3 min', '2.5 h']
    """
    if seconds < 1:
        return f"{seconds:.1g} s"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _step(value: float, steps: Steps) -> tuple[float, str]:
    """Returns the largest unit that the rounded number reaches; for 0 and infinity the unit with factor 1."""
    if not value or not isfinite(value):
        return next((step for step in steps if step[0] == 1.0), steps[0])
    size = abs(float(f"{value:.{DIGITS}g}"))
    return next((step for step in reversed(steps) if size >= step[0]), steps[0])


def _with_unit(value: float, step: tuple[float, str]) -> str:
    if step in SHARE:
        return f"{100 * value:.3g} %" if abs(value) < 9.995 else f"{100 * value:.0f} %"
    if step in VOLTS and value == 0:
        return "least"  # as a study has it: each machine has a voltage of its own
    if step == CYCLES[0] and isfinite(value) and abs(value) >= 10**DIGITS:
        value = round(value)  # drop fractions of a cycle, but write all digits of whole cycles
    if step in BITS and isfinite(value) and value == round(value):
        return f"{round(value)} {step[1]}"  # a power of two in full
    return f"{number(value / step[0])} {step[1]}".rstrip()
